/*
 * $title
 *
 * Written by spikestill $version. C99 in one file: no allocation, no floating point.
 *
 *     constants       $constant_bytes bytes
 *     working memory  $working_bytes bytes, static; the stack holds less than 512 bytes
 *
 * student_play(stack, votes) reads one stack of $channels x $height x $width pixels (uint8, oldest frame first, rows
 * first) and writes the votes of the $actions actions. student_action(votes, game) returns the action: the first of the
 * game's own with the most votes. $games
 * The spikes of every layer lie in student_spikes: feature f of a position is bit f % 64 of word f / 64 of that position,
 * positions row by row, layers one after another.
 * One frame at a time: the functions share static memory.
 *
 *     cc -std=c99 -O2 -o student student.c
 *     ./student$option < frames.bin              a line for each frame: the action, then the votes
 *     ./student --check < frames.bin      compares with the votes below; the exit status is 1 where one differs
 *     ./student --spikes < frames.bin     each frame's student_spikes, 8 bytes a word, the lowest first
 *     ./student --speed < frames.bin      frames a second of processor time, votes only
 *     ./student --memory                  the bytes above, as the compiler counts them
 *
 * -DSTUDENT_NO_MAIN leaves out main and the expected votes: link the rest into a program of your own.
 */
#include <stdint.h>
#include <string.h>

enum {
    CHANNELS = $channels, HEIGHT = $height, WIDTH = $width, ACTIONS = $actions, SPIKE_WORDS = $spike_words,
    STACK_BYTES = CHANNELS * HEIGHT * WIDTH
};

uint64_t student_spikes[SPIKE_WORDS];

/*
 * Layer 0, transduction: pixels 0..255 to spikes, y = 1 iff s >= theta.
 *
 * The padded stack is split into T_STRIDE x T_STRIDE phase planes for each channel. There the pixels that one tap brings
 * to all output positions lie side by side, so that a tap is one vector addition. A sum of T_CHUNK pixels fits 16 bits.
 */
enum {
    T_FEATURES = $t_features, T_WORDS = (T_FEATURES + 63) / 64, T_STRIDE = $t_stride, T_PAD = $t_pad,
    T_LEFT_OUT = T_PAD < 0 ? -T_PAD : 0, T_PLANE_HEIGHT = $t_plane_height, T_PLANE_WIDTH = $t_plane_width,
    T_OUT_HEIGHT = $t_out_height, T_OUT_WIDTH = $t_out_width, T_CHUNK = 257, T_VECTOR = 32,
    T_LENGTH = ((T_OUT_HEIGHT - 1) * T_PLANE_WIDTH + T_OUT_WIDTH + T_VECTOR - 1) / T_VECTOR * T_VECTOR,
    T_PLANE_BYTES = CHANNELS * T_STRIDE * T_STRIDE * T_PLANE_HEIGHT * T_PLANE_WIDTH + T_VECTOR
};

typedef $tap_type tap_t;

/* Where the taps of weight +1, then of weight -1, of each feature lie in the planes. */
static const tap_t taps[] = {
$taps
};

/* For each feature: its first tap of weight +1, its first of weight -1, the end. */
static const uint32_t tap_bounds[] = {
$tap_bounds
};

static const int32_t t_theta[] = {
$t_theta
};

static uint8_t planes[T_PLANE_BYTES];
static uint16_t t_part[T_LENGTH];
static int32_t t_sum[T_LENGTH];

static void split_phases(const uint8_t *stack)
{
    int channel, y, x;

    for (channel = 0; channel < CHANNELS; channel++)
        for (y = T_LEFT_OUT; y < HEIGHT - T_LEFT_OUT; y++) {
            const uint8_t *pixels = stack + (channel * HEIGHT + y) * WIDTH;
            const unsigned row = (unsigned)(y + T_PAD);
            uint8_t *into = planes + (channel * T_STRIDE + row % T_STRIDE) * T_STRIDE * T_PLANE_HEIGHT * T_PLANE_WIDTH
                + row / T_STRIDE * T_PLANE_WIDTH;
            for (x = T_LEFT_OUT; x < WIDTH - T_LEFT_OUT; x++) {
                const unsigned column = (unsigned)(x + T_PAD);
                into[column % T_STRIDE * T_PLANE_HEIGHT * T_PLANE_WIDTH + column / T_STRIDE] = pixels[x];
            }
        }
}

/* Add the pixels of taps first..end-1, at most T_CHUNK of them, at every position. */
static void add_taps(uint32_t first, uint32_t end)
{
    int i;

    memset(t_part, 0, sizeof t_part);
    for (; first + 4 <= end; first += 4) {
        const uint8_t *a = planes + taps[first], *b = planes + taps[first + 1];
        const uint8_t *c = planes + taps[first + 2], *d = planes + taps[first + 3];
        for (i = 0; i < T_LENGTH; i++)
            t_part[i] = (uint16_t)(t_part[i] + (uint16_t)(a[i] + b[i]) + (uint16_t)(c[i] + d[i]));
    }
    for (; first < end; first++) {
        const uint8_t *a = planes + taps[first];
        for (i = 0; i < T_LENGTH; i++)
            t_part[i] = (uint16_t)(t_part[i] + a[i]);
    }
}

static void transduce(const uint8_t *stack)
{
    int feature, sign, i, row, column;

    split_phases(stack);
    for (i = 0; i < T_OUT_HEIGHT * T_OUT_WIDTH * T_WORDS; i++)
        student_spikes[i] = 0;
    for (feature = 0; feature < T_FEATURES; feature++) {
        const int32_t theta = t_theta[feature];
        memset(t_sum, 0, sizeof t_sum);
        for (sign = 0; sign < 2; sign++) {
            uint32_t first = tap_bounds[3 * feature + sign];
            const uint32_t end = tap_bounds[3 * feature + sign + 1];
            while (first < end) {
                const uint32_t stop = end - first > T_CHUNK ? first + T_CHUNK : end;
                add_taps(first, stop);
                if (sign == 0)
                    for (i = 0; i < T_LENGTH; i++)
                        t_sum[i] += t_part[i];
                else
                    for (i = 0; i < T_LENGTH; i++)
                        t_sum[i] -= t_part[i];
                first = stop;
            }
        }
        for (row = 0; row < T_OUT_HEIGHT; row++)
            for (column = 0; column < T_OUT_WIDTH; column++)
                student_spikes[(row * T_OUT_WIDTH + column) * T_WORDS + feature / 64] |=
                    (uint64_t)(t_sum[row * T_PLANE_WIDTH + column] >= theta) << feature % 64;
    }
}
