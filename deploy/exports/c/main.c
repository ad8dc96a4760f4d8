
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

#ifndef STUDENT_NO_MAIN
#include <stdio.h>
#include <time.h>

enum { FRAMES = $frames };

/* The votes of the frames in frames.bin, one frame after another. */
static const int32_t expected[] = {
$expected
};

static uint8_t stack[STACK_BYTES];

static int action_of(const int32_t *votes)
{
    int action, best = 0;

    for (action = 1; action < ACTIONS; action++)
        if (votes[action] > votes[best])
            best = action;
    return best;
}

static void write_spikes(void)
{
    int word, byte;

    for (word = 0; word < SPIKE_WORDS; word++)
        for (byte = 0; byte < 8; byte++)
            putchar((int)(student_spikes[word] >> 8 * byte & 0xff));
}

static int usage(const char *name)
{
    fprintf(stderr, "usage: %s [--check | --spikes | --speed | --memory] < frames.bin\n", name);
    return 2;
}

int main(int count, char **words)
{
    const char *mode = count == 2 ? words[1] : "";
    const int check = !strcmp(mode, "--check"), spikes = !strcmp(mode, "--spikes"), speed = !strcmp(mode, "--speed");
    int32_t votes[ACTIONS];
    long frames = 0, differ = 0;
    double seconds = 0;
    size_t bytes;
    int action;

    if (count == 2 && !strcmp(mode, "--memory")) {
        printf("constants %lu bytes, working memory %lu bytes\n", (unsigned long)($constant_sizes),
            (unsigned long)($working_sizes));
        return 0;
    }
    if (count > 2 || (count == 2 && !check && !spikes && !speed))
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
            printf("%d", action_of(votes));
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
