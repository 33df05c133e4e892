// Jobs, rows, and numbers narrower than f32, as crates/kernels/src/scalar/number.rs defines them.

// A job is one matrix times one vector: so many words, which crates/gpu/src/job.rs writes.
#define JOB_WORDS 24

#define ARGUMENTS                                                                                  \
  GLOBAL const U8 *weights, GLOBAL const float *inputs, GLOBAL float *outputs,                     \
      GLOBAL const U32 *jobs

// A row of a matrix.
typedef struct {
  // Its bytes in the first part, and in the part with scales or the table of exponents.
  GLOBAL const U8 *codes;
  GLOBAL const U8 *scales;
  // Its patches, or the group of each column, and their length in bytes.
  GLOBAL const U8 *beside;
  U32 beside_len;
  U32 cols;
  // A column's scale has the number `column >> shift`; and so many there are at most.
  U32 shift;
  U32 kind;
  U32 groups;
} Row;

#define SCALE_F32 0u
#define SCALE_BF16 1u
#define SCALE_E8M0 2u

DEVICE U64 wide(GLOBAL const U32 *job, U32 word) { return (U64)job[word] | (U64)job[word + 1] << 32; }

// Numbers at multiples of their size: parts begin at multiples of 16, and rows, blocks and groups that hold such
// numbers have as many bytes as keep them so. Other numbers are read by bytes (packed.c).
DEVICE U32 u16_at(GLOBAL const U8 *p) { return ALIGNED(p, 2) ? (U32) * (GLOBAL const U16 *)p : 0u; }

DEVICE U32 u32_at(GLOBAL const U8 *p) { return ALIGNED(p, 4) ? *(GLOBAL const U32 *)p : 0u; }

DEVICE Row row_of(GLOBAL const U8 *weights, GLOBAL const U32 *job, U32 row) {
  Row r;
  r.codes = weights + wide(job, 0) + (U64)row * job[2];
  r.scales = weights + wide(job, 3) + (U64)(row >> job[6]) * job[5];
  r.shift = job[7];
  r.kind = job[8];
  r.groups = job[5] / 4u;
  r.beside = weights + wide(job, 9);
  r.beside_len = job[11];
  r.cols = job[15];
  return r;
}

// The offset of a row's patches: a number for each row, or one for sixteen rows and a small one for each.
DEVICE U32 offset_of(GLOBAL const U8 *offsets, U32 shared, U32 row) {
  if (!shared) return u32_at(offsets + 4 * (U64)row);
  GLOBAL const U8 *group = offsets + 36 * (U64)(row / 16u);
  return u32_at(group) + u16_at(group + 4 + 2 * (row % 16u));
}

// Narrows `beside` from all patches to those of a row, or to those from it on. Wrong offsets are clamped.
DEVICE void patches_of(Row *r, GLOBAL const U32 *job, U32 row, U32 own) {
  U32 len = job[11] - job[12];
  U32 start = offset_of(r->beside, job[13], row);
  U32 end = own ? offset_of(r->beside, job[13], row + 1u) : len;
  if (start > len) start = len;
  if (end > len) end = len;
  if (end < start) end = start;
  r->beside += (U64)job[12] + start;
  r->beside_len = end - start;
}

DEVICE float bf16(U32 bits) { return FLOAT(bits << 16); }

DEVICE float f16(U32 bits) {
  U32 sign = (bits & 0x8000u) << 16;
  U32 magnitude = bits & 0x7fffu;
  U32 exponent = magnitude >> 10;
  U32 wide_bits = (magnitude << 13) + (112u << 23);
  if (exponent == 0u) wide_bits = BITS(MUL((float)magnitude, FLOAT(0x33800000u)));
  if (exponent == 31u) wide_bits = 0x7f800000u | (magnitude & 0x3ffu) << 13;
  return FLOAT(sign | wide_bits);
}

DEVICE float e4m3(U32 code) {
  U32 sign = (code & 0x80u) << 24;
  U32 m = code & 0x7fu;
  U32 bits = (m << 20) + (120u << 23);
  if (m < 8u) bits = BITS(MUL((float)m, FLOAT(0x3b000000u)));
  if (m == 0x7fu) bits = 0x7fc00000u;
  return FLOAT(sign | bits);
}

DEVICE float e8m0(U32 code) {
  if (code == 0u) return FLOAT(0x00400000u);
  return FLOAT(code == 255u ? 0x7fc00000u : code << 23);
}

DEVICE float half_e8m0(U32 code) {
  if (code < 2u) return FLOAT(code == 0u ? 0x00200000u : 0x00400000u);
  return FLOAT((code - 1u) << 23);
}

CONSTANT float E2M1[16] = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                           -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};
// Without a negative zero.
CONSTANT float DOUBLE_E2M1[16] = {0.0f, 1.0f,  2.0f,  3.0f,  4.0f,  6.0f,  8.0f,  12.0f,
                                  0.0f, -1.0f, -2.0f, -3.0f, -4.0f, -6.0f, -8.0f, -12.0f};

DEVICE float signed_byte(U8 byte) { return (float)(S8)byte; }

DEVICE U32 nibble(GLOBAL const U8 *bytes, U32 at) { return (U32)bytes[at / 2u] >> (4u * (at % 2u)) & 15u; }

DEVICE float scale_at(const Row *r, U32 col) {
  U32 at = col >> r->shift;
  if (r->kind == SCALE_F32) return FLOAT(u32_at(r->scales + 4 * at));
  if (r->kind == SCALE_BF16) return bf16(u16_at(r->scales + 2 * at));
  return e8m0(r->scales[at]);
}
