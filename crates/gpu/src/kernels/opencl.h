// The words of the kernels in OpenCL C 1.2.

#pragma OPENCL FP_CONTRACT OFF

#define KERNEL __kernel __attribute__((reqd_work_group_size(32, ROWS, 1)))
#define DEVICE
#define GLOBAL __global
#define CONSTANT __constant
// An array of a group of threads, and a pointer to one.
#define SHARED __local
#define SHARED_POINTER __local

typedef uchar U8;
typedef char S8;
typedef ushort U16;
typedef uint U32;
typedef ulong U64;

#define LANE ((U32)get_local_id(0))
#define ROW_OF_GROUP ((U32)get_local_id(1))
#define GROUP ((U32)get_group_id(1))
#define JOB ((U32)get_group_id(2))
#define MEET barrier(CLK_LOCAL_MEM_FENCE)

#define MUL(a, b) ((a) * (b))
#define ADD(a, b) ((a) + (b))
#define FLOAT(bits) as_float(bits)
#define BITS(number) as_uint(number)
#define COUNT(bits) ((U32)popcount(bits))

// Tests let numbers at other addresses than those that all devices can read be wrong.
#if defined(SWS_STRICT)
#define ALIGNED(p, bytes) ((ulong)(p) % (bytes) == 0)
#else
#define ALIGNED(p, bytes) 1
#endif

// Tests build devices that are wrong in one of these ways, all of which have to be refused.
#if defined(SWS_UNFUSED)
#define FMA(a, b, c) ADD(MUL(a, b), c)
#elif defined(SWS_FLUSHES)
float flushed(float a) { return (as_uint(a) & 0x7f800000u) == 0u ? as_float(as_uint(a) & 0x80000000u) : a; }
#define FMA(a, b, c) flushed(fma(flushed(a), flushed(b), flushed(c)))
#elif defined(SWS_SLOW)
// About a second for ten thousand of them.
float slow(float a, float b, float c) {
  volatile float sum = 0.0f;
  for (U32 i = 0; i < 20000u; i++) sum = fma(a, b, sum);
  return fma(a, b, c);
}
#define FMA(a, b, c) slow(a, b, c)
#else
#define FMA(a, b, c) fma(a, b, c)
#endif
