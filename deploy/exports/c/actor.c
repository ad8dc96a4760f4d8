/*
 * A fixed-point actor: observations in, actions out, all integers.
 *
 * Written by spikestill $version. C99 in one file: no allocation, no floating point.
 *
 *     constants       $constant_bytes bytes
 *     working memory  $working_bytes bytes, static; the stack holds less than 512 bytes
 *
 * actor_play(observation, action) reads $inputs integers and writes $outputs. An integer X stands for
 * X / 2^$fraction, the same in both; it must lie within $bits bits: round a reading x to the nearest x * 2^$fraction and
 * saturate. Actions lie in -1..1, -2^$fraction..2^$fraction. One observation at a time: the layers share static memory.
 *
 *     cc -std=c99 -O2 -o actor actor.c
 *     ./actor < frames.bin              a line for each observation: the action's integers
 *     ./actor --check < frames.bin      compares with the actions below; the exit status is 1 where one differs
 *     ./actor --speed < frames.bin      actions a second of processor time
 *     ./actor --memory                  the bytes above, as the compiler counts them
 *
 * frames.bin has 4 bytes for each integer, the lowest first. -DACTOR_NO_MAIN leaves out main and the expected actions.
 */
#include <stdint.h>

enum {
    INPUTS = $inputs, OUTPUTS = $outputs, LAYERS = $layers, WIDEST = $widest, BITS = $bits, ACTIVATION = $fraction,
    WEIGHT = $weight_fraction, WIDE = 48, TANH_STEP = 7, TANH_SEGMENTS = 1024, TANH_FRACTION = 20
};

/* A layer's weights by rows, an output each, then its biases; and the 16-bit format of its inputs, where there is one. */
typedef struct {
    int32_t inputs, outputs, first, affine, mantissa, exponent, zero;
} layer_t;

static const layer_t layers[] = {
$layer_table
};

static const int32_t parameters[] = {
$parameters
};

/* round(2^20 tanh(k / 128)) */
static const int32_t tanh_table[] = {
$tanh_table
};

static int32_t units[2][WIDEST];

/* floor(x / 2^by), as C leaves the shift of a negative number to the compiler. */
static int64_t shifted(int64_t x, int by)
{
    return x < 0 ? ~(~x >> by) : x >> by;
}

/* floor(x / 2^by + 1 / 2) */
static int64_t rounded(int64_t x, int by)
{
    return by == 0 ? x : shifted(x + ((int64_t)1 << (by - 1)), by);
}

static int64_t saturated(int64_t x, int bits)
{
    const int64_t high = ((int64_t)1 << (bits - 1)) - 1;

    return x > high ? high : x < -high - 1 ? -high - 1 : x;
}

/* The sum of products of 32-bit inputs in two halves that cannot overflow, rounded to the activation's last place. */
static int64_t whole(const int32_t *x, const int32_t *w, int terms)
{
    int64_t upper = 0, lower = 0;
    int k;

    for (k = 0; k < terms; k++) {
        upper += shifted(x[k], 16) * w[k];
        lower += (x[k] & 0xffff) * (int64_t)w[k];
    }
    upper += shifted(lower, 16);
    lower -= shifted(lower, 16) * 65536;
    if (WEIGHT > 16)
        return saturated(rounded(upper, WEIGHT > 16 ? WEIGHT - 16 : 0), WIDE);
    /* Beyond 2^40 the layer's result saturates anyway. */
    upper = saturated(upper, 41);
    return saturated(upper * ((int64_t)1 << (WEIGHT > 16 ? 0 : 16 - WEIGHT)) + rounded(lower, WEIGHT), WIDE);
}

/* As above, of 17-bit inputs whose last place is mantissa 2^(exponent - 16) of the activation's. */
static int64_t narrow(const layer_t *layer, const int32_t *x, const int32_t *w)
{
    const int by = WEIGHT + 8 - layer->exponent;
    int64_t sum = 0;
    int k;

    for (k = 0; k < layer->inputs; k++)
        sum += (int64_t)x[k] * w[k];
    sum = saturated(rounded(sum, 8), WIDE) * layer->mantissa;
    return saturated(by == 0 ? sum : shifted(shifted(sum, by - 1) + 1, 1), WIDE);
}

/* floor(a / b), b > 0 */
static int64_t quotient(int64_t a, int64_t b)
{
    return a >= 0 ? a / b : -((-a + b - 1) / b);
}

/* Replace activations by q - z: q = floor(activation / delta) + z, saturated to 16 bits. */
static void quantise(const layer_t *layer, int32_t *x)
{
    const int up = layer->exponent < 0 ? -layer->exponent : 0, down = layer->exponent > 0 ? layer->exponent : 0;
    int k;

    for (k = 0; k < layer->inputs; k++) {
        int64_t q = quotient(x[k] * ((int64_t)1 << (16 + up)), (int64_t)layer->mantissa << down) + layer->zero;
        q = q < 0 ? 0 : q > 0xffff ? 0xffff : q;
        x[k] = (int32_t)(q - layer->zero);
    }
}

/* tanh by table and linear interpolation. */
static int32_t hyperbolic_tangent(int32_t x)
{
    enum {
        REST = ACTIVATION > TANH_STEP ? ACTIVATION - TANH_STEP : 0,
        UP = ACTIVATION < TANH_STEP ? TANH_STEP - ACTIVATION : 0
    };
    const int64_t size = x < 0 ? -(int64_t)x : x, segment = (size >> REST) << UP;
    int64_t y = tanh_table[TANH_SEGMENTS];

    if (segment < TANH_SEGMENTS)
        y = tanh_table[segment]
            + rounded((tanh_table[segment + 1] - tanh_table[segment]) * (size & (((int64_t)1 << REST) - 1)), REST);
    if (ACTIVATION >= TANH_FRACTION)
        y <<= ACTIVATION >= TANH_FRACTION ? ACTIVATION - TANH_FRACTION : 0;
    else
        y = rounded(y, ACTIVATION < TANH_FRACTION ? TANH_FRACTION - ACTIVATION : 0);
    return (int32_t)(x < 0 ? -y : y);
}

void actor_play(const int32_t *observation, int32_t *action)
{
    int32_t *x = units[0], *y = units[1], *other;
    int index, k;

    for (k = 0; k < INPUTS; k++)
        x[k] = observation[k];
    for (index = 0; index < LAYERS; index++) {
        const layer_t *layer = layers + index;
        const int32_t *weight = parameters + layer->first, *bias = weight + layer->inputs * layer->outputs;
        if (layer->affine)
            quantise(layer, x);
        for (k = 0; k < layer->outputs; k++, weight += layer->inputs) {
            int64_t value = layer->affine ? narrow(layer, x, weight) : whole(x, weight, layer->inputs);
            value += rounded(bias[k], WEIGHT - ACTIVATION);
            if (index < LAYERS - 1 && value < 0)
                value = 0;
            y[k] = (int32_t)saturated(value, BITS);
        }
        other = x;
        x = y;
        y = other;
    }
    for (k = 0; k < OUTPUTS; k++)
        action[k] = hyperbolic_tangent(x[k]);
}

#ifndef ACTOR_NO_MAIN
#include <stdio.h>
#include <string.h>
#include <time.h>

enum { FRAMES = $frames };

/* The actions for frames.bin, one observation after another. */
static const int32_t expected[] = {
$expected
};

static int read_integer(int32_t *found)
{
    unsigned char bytes[4];
    uint32_t word;

    if (fread(bytes, 1, 4, stdin) != 4)
        return 0;
    word = bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16 | (uint32_t)bytes[3] << 24;
    *found = word < UINT32_C(0x80000000) ? (int32_t)word : -(int32_t)~word - 1;
    return 1;
}

int main(int count, char **words)
{
    static int32_t observation[INPUTS];
    const char *mode = count == 2 ? words[1] : "";
    const int check = !strcmp(mode, "--check"), speed = !strcmp(mode, "--speed");
    int32_t action[OUTPUTS];
    long frames = 0, differ = 0;
    double seconds = 0;
    int k = 0;

    if (count == 2 && !strcmp(mode, "--memory")) {
        printf("constants %lu bytes, working memory %lu bytes\n",
            (unsigned long)(sizeof layers + sizeof parameters + sizeof tanh_table), (unsigned long)sizeof units);
        return 0;
    }
    if (count > 2 || (count == 2 && !check && !speed)) {
        fprintf(stderr, "usage: %s [--check | --speed | --memory] < frames.bin\n", words[0]);
        return 2;
    }
    while (read_integer(observation + k)) {
        clock_t began;
        if (++k < INPUTS)
            continue;
        k = 0;
        began = clock();
        actor_play(observation, action);
        seconds += (double)(clock() - began) / CLOCKS_PER_SEC;
        if (check && frames < FRAMES && memcmp(action, expected + frames * OUTPUTS, sizeof action) && !differ++)
            fprintf(stderr, "the action for observation %ld differs from that expected\n", frames);
        if (!check && !speed) {
            for (; k < OUTPUTS; k++)
                printf("%ld%c", (long)action[k], k < OUTPUTS - 1 ? ' ' : '\n');
            k = 0;
        }
        frames++;
    }
    if (k) {
        fprintf(stderr, "observation %ld has %d integers, %d are wanted\n", frames, k, (int)INPUTS);
        return 1;
    }
    if (check) {
        printf("%ld observations, %ld differ\n", frames, differ);
        if (frames != FRAMES)
            fprintf(stderr, "%d observations are expected\n", (int)FRAMES);
        return differ || frames != FRAMES;
    }
    if (speed)
        printf("%ld observations, %.0f actions/s\n", frames, seconds > 0 ? (double)frames / seconds : 0.0);
    return 0;
}
#endif
