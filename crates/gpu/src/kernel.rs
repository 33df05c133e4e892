//! The kernels: their names, the encodings they are for, and their source in each dialect of C.

use std::ffi::CStr;

use sws_kernels::{Encoding, GgufBlocks, Int4Groups};

/// Declares the kernels, with the name of each in the source.
macro_rules! kernels {
    ($($(#[$doc:meta])* $kernel:ident = $name:literal,)*) => {
        /// A kernel. All have the same arguments, those of a [`KernelLaunch`](crate::KernelLaunch).
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[expect(missing_docs, reason = "products are named after their encodings")]
        pub enum Kernel {
            $($(#[$doc])* $kernel,)*
        }

        impl Kernel {
            /// Every kernel, in the order of its number.
            pub const ALL: &[Kernel] = &[$(Kernel::$kernel,)*];

            /// Its name in the source.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Kernel::$kernel => $name,)*
                }
            }

            /// The name with its end, for C.
            pub(crate) fn symbol(self) -> &'static CStr {
                let bytes = match self {
                    $(Kernel::$kernel => concat!($name, "\0").as_bytes(),)*
                };
                CStr::from_bytes_with_nul(bytes).expect("a name with an end")
            }
        }
    };
}

kernels! {
    /// Three operations on hard cases.
    Check = "check",
    F32 = "product_f32",
    F16 = "product_f16",
    Bf16 = "product_bf16",
    Bf12 = "product_bf12",
    Bf11 = "product_bf11",
    Q8 = "product_q8",
    Q4 = "product_q4",
    Fp8 = "product_fp8",
    Mxfp4 = "product_mxfp4",
    Int4 = "product_int4",
    Int4Zeros = "product_int4_zeros",
    Int4Order = "product_int4_order",
    Q8_0 = "product_q8_0",
    Q4K = "product_q4_k",
    Q5K = "product_q5_k",
    Q6K = "product_q6_k",
    Mxfp4Gguf = "product_mxfp4_gguf",
}

impl Kernel {
    /// The kernel for matrices in an encoding; `None` for those that stay on the CPU.
    pub const fn of(encoding: Encoding) -> Option<Kernel> {
        Some(match encoding {
            Encoding::F32 => Kernel::F32,
            Encoding::F16 => Kernel::F16,
            Encoding::Bf16 => Kernel::Bf16,
            Encoding::Bf12 => Kernel::Bf12,
            Encoding::Bf11 => Kernel::Bf11,
            Encoding::Q8 => Kernel::Q8,
            Encoding::Q4 => Kernel::Q4,
            Encoding::Fp8(_) => Kernel::Fp8,
            Encoding::Mxfp4 => Kernel::Mxfp4,
            Encoding::Int4(Int4Groups::Symmetric32 | Int4Groups::Symmetric128) => Kernel::Int4,
            Encoding::Int4(Int4Groups::Zeros(_)) => Kernel::Int4Zeros,
            Encoding::Int4(Int4Groups::ActOrder(_)) => Kernel::Int4Order,
            Encoding::Gguf(GgufBlocks::Q8_0) => Kernel::Q8_0,
            Encoding::Gguf(GgufBlocks::Q4K) => Kernel::Q4K,
            Encoding::Gguf(GgufBlocks::Q5K) => Kernel::Q5K,
            Encoding::Gguf(GgufBlocks::Q6K) => Kernel::Q6K,
            Encoding::Gguf(GgufBlocks::Mxfp4) => Kernel::Mxfp4Gguf,
            Encoding::Nested
            | Encoding::Top
            | Encoding::Fp7(_)
            | Encoding::Nvfp4(_)
            | Encoding::Gguf(_) => return None,
        })
    }
}

/// Languages that the kernels are written in, by a header for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelDialect {
    /// OpenCL C 1.2.
    OpenCl,
    /// CUDA C.
    Cuda,
}

/// A way in which a device can be wrong, for tests of the checks that refuse it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Flaw {
    /// Right.
    #[default]
    None,
    /// A multiplication and an addition in place of a fused multiply-add.
    Unfused,
    /// Numbers that are not at multiples of their size become zero, which some devices cannot read at all.
    Strict,
    /// Subnormal numbers that become zero.
    Flushes,
    /// A second for what takes a moment.
    Slow,
}

/// Rows that a group of threads computes, 32 threads each.
pub(crate) const ROWS: u32 = 4;

/// The source of all kernels.
pub fn source_text(dialect: KernelDialect, flaw: Flaw) -> String {
    let flaw = match flaw {
        Flaw::None => "",
        Flaw::Unfused => "#define SWS_UNFUSED\n",
        Flaw::Strict => "#define SWS_STRICT\n",
        Flaw::Flushes => "#define SWS_FLUSHES\n",
        Flaw::Slow => "#define SWS_SLOW\n",
    };
    let words = match dialect {
        KernelDialect::OpenCl => include_str!("kernels/opencl.h"),
        KernelDialect::Cuda => include_str!("kernels/cuda.h"),
    };
    [
        &format!("#define ROWS {ROWS}\n{flaw}"),
        words,
        include_str!("kernels/numbers.c"),
        include_str!("kernels/plain.c"),
        include_str!("kernels/packed.c"),
        include_str!("kernels/coded.c"),
    ]
    .concat()
}
