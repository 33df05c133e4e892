// Products with weights that are small whole numbers under shared scales, summed as codes in fours of columns: see
// crates/kernels/src/matmul/reference/coded.rs. Lane l of 32 has four l mod 16 of each unit of 64 columns that is even
// (l < 16) or odd; lanes 0 to 7 also have a sum of minima.

#define NEIGHBOURS(four, k) (4u * (four) + (k))
#define APART(four, k) (16u * (k) + (four))

// Smaller activations count as zero.
DEVICE float counted(float x) { return (BITS(x) & 0x7fffffffu) < (27u << 23) ? 0.0f : x; }

#define CODED(NAME, COL, RUN, FACTOR, CODE, SCALE, ADDED)                                          \
  KERNEL void NAME(ARGUMENTS) {                                                                    \
    BEGIN                                                                                          \
    GLOBAL const float *sums = inputs + job[17];                                                   \
    U32 four = lane % 16u;                                                                         \
    float sum = 0.0f;                                                                              \
    for (U32 first = 64u * (lane / 16u); first < cols; first += 128u) {                            \
      float p = 0.0f;                                                                              \
      for (U32 k = 0u; k < 4u; k++) {                                                              \
        U32 c = first + COL(four, k);                                                              \
        float code = c < cols ? (float)CODE(&r, c) : 0.0f;                                         \
        float value = c < cols ? counted(x[c]) : 0.0f;                                             \
        p = k == 0u ? MUL(code, value) : FMA(code, value, p);                                      \
      }                                                                                            \
      U32 run = (first + COL(four, 0u)) / RUN * RUN;                                               \
      float scale = run < cols ? SCALE(&r, run) : 0.0f;                                            \
      sum = FMA(scale, p, sum);                                                                    \
    }                                                                                              \
    float minima = 0.0f;                                                                           \
    if (lane < 8u) {                                                                               \
      for (U32 span = 0u; span < cols; span += 256u) {                                             \
        for (U32 run = RUN * lane; run < 256u; run += 8u * RUN) {                                  \
          U32 c = span + run;                                                                      \
          float added = c < cols ? ADDED(&r, c) : 0.0f;                                            \
          float activations = sums[c / 16u];                                                       \
          if (RUN == 32u) activations = ADD(activations, sums[c / 16u + 1u]);                      \
          minima = FMA(added, activations, minima);                                                \
        }                                                                                          \
      }                                                                                            \
    }                                                                                              \
    sum = fold(lanes[ROW_OF_GROUP], lane, 32u, sum);                                               \
    minima = fold(lanes[ROW_OF_GROUP], lane, 8u, minima);                                          \
    finish(weights, job, wanted, lane, FMA(FACTOR, minima, sum), outputs);                         \
  }

DEVICE U32 code_q4(const Row *r, U32 c) {
  U32 i = c % 64u;
  U32 whole = c - i + 64u <= r->cols;
  return nibble(r->codes + 32 * (U64)(c / 64u), whole ? 4u * (i % 16u) + i / 16u : i) ^ 8u;
}

DEVICE U32 code_int4(const Row *r, U32 c) { return nibble(r->codes, c); }

DEVICE U32 unit_of(const Row *r, U32 c) { return u32_at(r->scales + 4 * (U64)(c >> r->shift)); }
DEVICE float scale_zeros(const Row *r, U32 c) { return FLOAT(unit_of(r, c) & ~BELOW_SCALE); }
DEVICE float minimum_zeros(const Row *r, U32 c) {
  U32 unit = unit_of(r, c);
  return MUL(-(float)(unit & 15u), FLOAT(unit & ~BELOW_SCALE));
}

// The block of 256 columns that a column is in.
DEVICE GLOBAL const U8 *block_of(const Row *r, U32 c, U32 bytes) { return r->codes + (U64)(c / 256u) * bytes; }

// A code of four bits in each of four quarters of a block.
DEVICE U32 quarter(GLOBAL const U8 *b, U32 i) {
  return (U32)b[i / 64u * 32u + i % 32u] >> (4u * (i / 32u % 2u)) & 15u;
}

// The scale and the minimum, both of six bits, of one of eight groups.
DEVICE U32 six_bit_scale(GLOBAL const U8 *p, U32 j) {
  return j < 4u ? p[j] & 63u : (p[j + 4u] & 15u) | (U32)p[j - 4u] >> 6 << 4;
}
DEVICE U32 six_bit_minimum(GLOBAL const U8 *p, U32 j) {
  return j < 4u ? p[j + 4u] & 63u : (U32)p[j + 4u] >> 4 | (U32)p[j] >> 6 << 4;
}
DEVICE float scale_of_six(GLOBAL const U8 *b, U32 c) {
  return MUL(f16(u16_at(b)), (float)six_bit_scale(b + 4, c % 256u / 32u));
}
DEVICE float minimum_of_six(GLOBAL const U8 *b, U32 c) {
  return MUL(-f16(u16_at(b + 2)), (float)six_bit_minimum(b + 4, c % 256u / 32u));
}

DEVICE U32 code_q4_k(const Row *r, U32 c) { return quarter(block_of(r, c, 144u) + 16, c % 256u); }
DEVICE float scale_q4_k(const Row *r, U32 c) { return scale_of_six(block_of(r, c, 144u), c); }
DEVICE float minimum_q4_k(const Row *r, U32 c) { return minimum_of_six(block_of(r, c, 144u), c); }

DEVICE U32 code_q5_k(const Row *r, U32 c) {
  GLOBAL const U8 *b = block_of(r, c, 176u);
  U32 i = c % 256u;
  return quarter(b + 48, i) | ((U32)b[16u + i % 32u] >> (i / 32u) & 1u) << 4;
}
DEVICE float scale_q5_k(const Row *r, U32 c) { return scale_of_six(block_of(r, c, 176u), c); }
DEVICE float minimum_q5_k(const Row *r, U32 c) { return minimum_of_six(block_of(r, c, 176u), c); }

DEVICE U32 code_q6_k(const Row *r, U32 c) {
  GLOBAL const U8 *b = block_of(r, c, 210u);
  U32 i = c % 256u;
  U32 j = i % 128u;
  U32 low = (U32)b[64u * (i / 128u) + j % 64u] >> (4u * (j / 64u)) & 15u;
  U32 high = (U32)b[128u + i / 128u * 32u + i % 32u] >> (2u * (i / 32u % 4u)) & 3u;
  return low | high << 4;
}
DEVICE float scale_q6_k(const Row *r, U32 c) {
  GLOBAL const U8 *b = block_of(r, c, 210u);
  return MUL(f16(u16_at(b + 208)), signed_byte(b[192u + c % 256u / 16u]));
}

CODED(product_q4, APART, 32u, -8.0f, code_q4, scale_at, scale_at)
CODED(product_int4, NEIGHBOURS, 32u, -8.0f, code_int4, scale_at, scale_at)
CODED(product_int4_zeros, NEIGHBOURS, 32u, 1.0f, code_int4, scale_zeros, minimum_zeros)
CODED(product_q4_k, NEIGHBOURS, 32u, 1.0f, code_q4_k, scale_q4_k, minimum_q4_k)
CODED(product_q5_k, NEIGHBOURS, 32u, 1.0f, code_q5_k, scale_q5_k, minimum_q5_k)
CODED(product_q6_k, NEIGHBOURS, 16u, -32.0f, code_q6_k, scale_q6_k, scale_q6_k)
