
/* Count the votes of the last layer: feature i, at every position, votes for action i % ACTIONS. */
static void count_votes(int32_t *votes)
{
    enum { POSITIONS = $positions, FEATURES = $features, WORDS = (FEATURES + 63) / 64, USED = FEATURES / ACTIONS * ACTIONS };
    const uint64_t *last = student_spikes + $last_start;
    int position, feature, action;

    for (action = 0; action < ACTIONS; action++)
        votes[action] = 0;
    for (position = 0; position < POSITIONS; position++)
        for (feature = 0; feature < USED; feature++)
            votes[feature % ACTIONS] += (int32_t)(last[position * WORDS + feature / 64] >> feature % 64 & 1);
}

void student_play(const uint8_t *stack, int32_t *votes)
{
    transduce(stack);
$calls
    count_votes(votes);
}

/* The actions of game g are own_bounds[g]..own_bounds[g + 1] - 1 of own_actions. */
static const uint16_t own_actions[] = {
$own_actions
};
static const uint16_t own_bounds[] = {
$own_bounds
};

int student_action(const int32_t *votes, int game)
{
    int place = own_bounds[game], best = own_actions[place];

    while (++place < own_bounds[game + 1])
        if (votes[own_actions[place]] > votes[best])
            best = own_actions[place];
    return best;
}

#ifndef STUDENT_NO_MAIN
#include <stdio.h>
#include <time.h>

enum { FRAMES = $frames, GAMES = $games };

static const char *const game_names[GAMES] = { $game_names };

/* The votes of the frames in frames.bin, one frame after another. */
static const int32_t expected[] = {
$expected
};

static uint8_t stack[STACK_BYTES];

static void write_spikes(void)
{
    int word, byte;

    for (word = 0; word < SPIKE_WORDS; word++)
        for (byte = 0; byte < 8; byte++)
            putchar((int)(student_spikes[word] >> 8 * byte & 0xff));
}

static int usage(const char *name)
{
    int game;

    fprintf(stderr, "usage: %s [--game NAME] [--check | --spikes | --speed | --memory] < frames.bin\ngames:", name);
    for (game = 0; game < GAMES; game++)
        fprintf(stderr, " %s", game_names[game]);
    fputs(GAMES > 1 ? "\nthe action is one of a game's own: give --game\n" : "\n", stderr);
    return 2;
}

static int game_named(const char *name)
{
    int game = GAMES;

    while (game-- > 0)
        if (!strcmp(name, game_names[game]))
            break;
    return game;
}

int main(int count, char **words)
{
    const char *mode = "";
    int32_t votes[ACTIONS];
    long frames = 0, differ = 0;
    double seconds = 0;
    size_t bytes;
    int action, word, check, spikes, speed, game = GAMES > 1 ? -1 : 0;

    for (word = 1; word < count; word++)
        if (!strcmp(words[word], "--game") && word + 1 < count) {
            game = game_named(words[++word]);
            if (game < 0)
                return usage(words[0]);
        } else if (!*mode)
            mode = words[word];
        else
            return usage(words[0]);
    check = !strcmp(mode, "--check");
    spikes = !strcmp(mode, "--spikes");
    speed = !strcmp(mode, "--speed");
    if (!strcmp(mode, "--memory")) {
        printf("constants %lu bytes, working memory %lu bytes\n", (unsigned long)($constant_sizes),
            (unsigned long)($working_sizes));
        return 0;
    }
    if (*mode ? !check && !spikes && !speed : game < 0)
        return usage(words[0]);
    while ((bytes = fread(stack, 1, STACK_BYTES, stdin)) == STACK_BYTES) {
        const clock_t began = clock();
        student_play(stack, votes);
        seconds += (double)(clock() - began) / CLOCKS_PER_SEC;
        if (check && frames < FRAMES && memcmp(votes, expected + frames * ACTIONS, sizeof votes) && !differ++)
            fprintf(stderr, "the votes of frame %ld differ from those expected\n", frames);
        if (spikes)
            write_spikes();
        else if (!check && !speed) {
            printf("%d", student_action(votes, game));
            for (action = 0; action < ACTIONS; action++)
                printf(" %ld", (long)votes[action]);
            putchar('\n');
        }
        frames++;
    }
    if (bytes) {
        fprintf(stderr, "frame %ld has %lu bytes, %d are wanted\n", frames, (unsigned long)bytes, (int)STACK_BYTES);
        return 1;
    }
    if (check) {
        printf("%ld frames, %ld differ\n", frames, differ);
        if (frames != FRAMES)
            fprintf(stderr, "%d frames are expected\n", (int)FRAMES);
        return differ || frames != FRAMES;
    }
    if (speed)
        printf("%ld frames, %.0f frames/s\n", frames, seconds > 0 ? (double)frames / seconds : 0.0);
    return 0;
}
#endif
