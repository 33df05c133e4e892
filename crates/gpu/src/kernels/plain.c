// Products with weights that are decoded to f32: lane l of 32 sums the columns l, l + 32, .. in ascending order.

// Begins a kernel: the job, and this thread's row, which is the last one in threads beyond it.
#define BEGIN                                                                                      \
  SHARED float lanes[ROWS][32];                                                                    \
  GLOBAL const U32 *job = jobs + (U64)JOB * JOB_WORDS;                               \
  U32 lane = LANE;                                                                                 \
  U32 rows = job[14];                                                                              \
  U32 wanted = GROUP * ROWS + ROW_OF_GROUP;                                                        \
  U32 row = wanted < rows ? wanted : rows - 1u;                                                    \
  U32 cols = wanted < rows ? job[15] : 0u;                                                         \
  GLOBAL const float *x = inputs + job[16];                                                        \
  Row r = row_of(weights, job, row);

// The fixed tree: lane i with i + 16, then + 8, + 4, + 2, + 1. Threads meet as often in every row.
DEVICE float fold(SHARED_POINTER float *lanes, U32 lane, U32 count, float sum) {
  lanes[lane] = sum;
  for (U32 half_of = count / 2u; half_of > 0u; half_of /= 2u) {
    MEET;
    if (lane < half_of) lanes[lane] = ADD(lanes[lane], lanes[lane + half_of]);
  }
  MEET;
  float folded = lanes[0];
  MEET;
  return folded;
}

// Ends a kernel: the product, and its bias if there is one.
DEVICE void finish(GLOBAL const U8 *weights, GLOBAL const U32 *job, U32 wanted, U32 lane, float sum,
                   GLOBAL float *outputs) {
  if (lane != 0u || wanted >= job[14]) return;
  if (job[19]) sum = ADD(sum, FLOAT(u32_at(weights + wide(job, 20) + 4 * (U64)wanted)));
  outputs[job[18] + wanted] = sum;
}

#define PLAIN(NAME, WEIGHT)                                                                        \
  KERNEL void NAME(ARGUMENTS) {                                                                    \
    BEGIN                                                                                          \
    float sum = 0.0f;                                                                              \
    for (U32 c = lane; c < cols; c += 32u) sum = FMA(WEIGHT(&r, c), x[c], sum);                    \
    sum = fold(lanes[ROW_OF_GROUP], lane, 32u, sum);                                               \
    finish(weights, job, wanted, lane, sum, outputs);                                              \
  }

DEVICE float weight_f32(const Row *r, U32 c) { return FLOAT(u32_at(r->codes + 4 * (U64)c)); }
DEVICE float weight_f16(const Row *r, U32 c) { return f16(u16_at(r->codes + 2 * (U64)c)); }
DEVICE float weight_bf16(const Row *r, U32 c) { return bf16(u16_at(r->codes + 2 * (U64)c)); }
DEVICE float weight_q8(const Row *r, U32 c) { return MUL(signed_byte(r->codes[c]), scale_at(r, c)); }
DEVICE float weight_fp8(const Row *r, U32 c) { return MUL(e4m3(r->codes[c]), scale_at(r, c)); }
DEVICE float weight_mxfp4(const Row *r, U32 c) { return MUL(E2M1[nibble(r->codes, c)], scale_at(r, c)); }

DEVICE float weight_q8_0(const Row *r, U32 c) {
  GLOBAL const U8 *b = r->codes + 34 * (U64)(c / 32u);
  return MUL(signed_byte(b[2u + c % 32u]), f16(u16_at(b)));
}

DEVICE float weight_mxfp4_gguf(const Row *r, U32 c) {
  GLOBAL const U8 *b = r->codes + 17 * (U64)(c / 32u);
  U32 i = c % 32u;
  return MUL(DOUBLE_E2M1[(U32)b[1u + i % 16u] >> (4u * (i / 16u)) & 15u], half_e8m0(b[0]));
}

// The bits of a scale with a zero point, below those of a scale that was f16 or bf16.
#define BELOW_SCALE 0x1fffu

DEVICE float weight_int4_order(const Row *r, U32 c) {
  U32 group = u16_at(r->beside + 2 * (U64)c);
  if (group >= r->groups) group = r->groups - 1u;
  U32 unit = u32_at(r->scales + 4 * (U64)group);
  float code = ADD((float)nibble(r->codes, c), -(float)(unit & 15u));
  return MUL(code, FLOAT(unit & ~BELOW_SCALE));
}

PLAIN(product_f32, weight_f32)
PLAIN(product_f16, weight_f16)
PLAIN(product_bf16, weight_bf16)
PLAIN(product_q8, weight_q8)
PLAIN(product_fp8, weight_fp8)
PLAIN(product_mxfp4, weight_mxfp4)
PLAIN(product_q8_0, weight_q8_0)
PLAIN(product_mxfp4_gguf, weight_mxfp4_gguf)
PLAIN(product_int4_order, weight_int4_order)

// Hard cases of the operations of which all sums are made: three inputs each, and three outputs.
KERNEL void check(ARGUMENTS) {
  GLOBAL const U32 *job = jobs + (U64)JOB * JOB_WORDS;
  U32 i = (GROUP * ROWS + ROW_OF_GROUP) * 32u + LANE;
  if (i < job[15]) {
    GLOBAL const float *x = inputs + job[16] + 3u * i;
    GLOBAL float *y = outputs + job[18] + 3u * i;
    y[0] = FMA(x[0], x[1], x[2]);
    y[1] = MUL(x[0], x[1]);
    y[2] = ADD(x[0], x[2]);
  }
}
