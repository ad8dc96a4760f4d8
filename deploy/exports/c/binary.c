
/*
 * The layers after it: inputs 0 and 1, weights -1, 0, +1, y = 1 iff s >= theta.
 *
 * With m the mask of a word's weights -1 and u that of its weights that are not 0, s plus the number of weights -1 is the
 * number of ones of (x ^ m) & u over the words of a patch. "least" is theta plus that number.
 */
typedef $count_type count_t;

enum { PATCH_WORDS = $patch_words, COUNTS = $counts };

static uint64_t patch[PATCH_WORDS];
static count_t counts[COUNTS];

#if defined(__GNUC__) && (defined(__POPCNT__) || defined(__aarch64__))
#define ones(word) ((count_t)__builtin_popcountll(word))
#else
static count_t ones(uint64_t word)
{
    word -= word >> 1 & UINT64_C(0x5555555555555555);
    word = (word & UINT64_C(0x3333333333333333)) + (word >> 2 & UINT64_C(0x3333333333333333));
    word = (word + (word >> 4)) & UINT64_C(0x0f0f0f0f0f0f0f0f);
    word += word >> 8;
    word += word >> 16;
    word += word >> 32;
    return (count_t)(word & 0x7f);
}
#endif

/* Return count (1..64) bits of words from bit start on. */
static uint64_t field(const uint64_t *words, int start, int count)
{
    const int shift = start % 64;
    uint64_t value = words[start / 64] >> shift;

    if (shift + count > 64)
        value |= words[start / 64 + 1] << (64 - shift);
    return count < 64 ? value & ((UINT64_C(1) << count) - 1) : value;
}

/* Pack which of 64 * words neurons fire. */
static void fire(const count_t *least, int words, uint64_t *out)
{
    int word, lane;

    for (word = 0; word < words; word++) {
        const count_t *count = counts + 64 * word, *limit = least + 64 * word;
        uint64_t fired = 0;
        for (lane = 0; lane < 64; lane++)
            fired |= (uint64_t)(count[lane] >= limit[lane]) << lane;
        out[word] = fired;
    }
}
