// The words of the kernels in CUDA C, compiled with --fmad=false --ftz=false.

#define KERNEL extern "C" __global__ __launch_bounds__(32 * ROWS)
#define DEVICE static __device__ __forceinline__
#define GLOBAL
#define CONSTANT static __device__ const
// An array of a group of threads, and a pointer to one.
#define SHARED __shared__
#define SHARED_POINTER

typedef unsigned char U8;
typedef signed char S8;
typedef unsigned short U16;
typedef unsigned int U32;
typedef unsigned long long U64;

#define LANE (threadIdx.x)
#define ROW_OF_GROUP (threadIdx.y)
#define GROUP (blockIdx.y)
#define JOB (blockIdx.z)
#define MEET __syncthreads()
#define ALIGNED(p, bytes) 1

// None of these is contracted, whatever the options.
#define FMA(a, b, c) __fmaf_rn(a, b, c)
#define MUL(a, b) __fmul_rn(a, b)
#define ADD(a, b) __fadd_rn(a, b)
#define FLOAT(bits) __uint_as_float(bits)
#define BITS(number) __float_as_uint(number)
#define COUNT(bits) ((U32)__popcll(bits))
