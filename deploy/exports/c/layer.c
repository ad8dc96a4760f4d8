
/* Layer $index: $in_channels x $in_height x $in_width to $features x $out_height x $out_width. */
static const uint64_t minus_$index[] = {
$minus
};

static const uint64_t used_$index[] = {
$used
};

static const count_t least_$index[] = {
$least
};

static void layer_$index(void)
{
    enum {
        IN_HEIGHT = $in_height, IN_WIDTH = $in_width, IN_WORDS = $in_words, OUT_HEIGHT = $out_height,
        OUT_WIDTH = $out_width, OUT_WORDS = $out_words, KERNEL = $kernel, STRIDE = $stride, PAD = $pad,
        GROUPS = $groups, PER_IN = $per_in, PER_OUT = $per_out, WORDS = $words, LANES = 64 * OUT_WORDS
    };
    const uint64_t *in = student_spikes + $in_start;
    uint64_t *out = student_spikes + $out_start;
    int row, column, u, v, group, word, lane;

    for (row = 0; row < OUT_HEIGHT; row++)
        for (column = 0; column < OUT_WIDTH; column++) {
            for (word = 0; word < WORDS * GROUPS; word++)
                patch[word] = 0;
            for (u = 0; u < KERNEL; u++)
                for (v = 0; v < KERNEL; v++) {
                    const int y = row * STRIDE + u - PAD, x = column * STRIDE + v - PAD, tap = u * KERNEL + v;
                    const uint64_t *pixel = in + (y * IN_WIDTH + x) * IN_WORDS;
                    if (y < 0 || y >= IN_HEIGHT || x < 0 || x >= IN_WIDTH)
                        continue;
                    for (group = 0; group < GROUPS; group++)
$gather
                }
            for (lane = 0; lane < LANES; lane++)
                counts[lane] = 0;
            for (word = 0; word < WORDS; word++)
                for (group = 0; group < GROUPS; group++) {
                    const uint64_t x = patch[word * GROUPS + group];
                    const uint64_t *m = minus_$index + word * LANES + group * PER_OUT;
                    const uint64_t *w = used_$index + word * LANES + group * PER_OUT;
                    count_t *c = counts + group * PER_OUT;
                    for (lane = 0; lane < PER_OUT; lane++)
                        c[lane] = (count_t)(c[lane] + ones((x ^ m[lane]) & w[lane]));
                }
            fire(least_$index, OUT_WORDS, out + (row * OUT_WIDTH + column) * OUT_WORDS);
        }
}
