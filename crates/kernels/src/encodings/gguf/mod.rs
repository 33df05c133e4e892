//! The block formats of GGUF files.

pub(super) mod blocks;
mod codebook;
pub(super) mod coded;
#[cfg(target_arch = "x86_64")]
mod codes;
pub(super) mod decode;
pub(super) mod encode;
pub(super) mod int8;
pub(super) mod nvfp4;
pub(super) mod quarters;
pub(super) mod reference;
pub(super) mod simd;
pub(super) mod ternary;

use super::facts::{Facts, Made};
use super::{GgufBlocks, MatrixPart};
use crate::scalar::{CodeForm, Coding};

impl GgufBlocks {
    /// The name used on the command line and in manifests.
    pub const fn name(self) -> &'static str {
        match self {
            GgufBlocks::Q4_0 => "q4_0",
            GgufBlocks::Q4_1 => "q4_1",
            GgufBlocks::Q5_0 => "q5_0",
            GgufBlocks::Q5_1 => "q5_1",
            GgufBlocks::Q8_0 => "q8_0",
            GgufBlocks::Q2K => "q2_k",
            GgufBlocks::Q3K => "q3_k",
            GgufBlocks::Q4K => "q4_k",
            GgufBlocks::Q5K => "q5_k",
            GgufBlocks::Q6K => "q6_k",
            GgufBlocks::Iq4Nl => "iq4_nl",
            GgufBlocks::Iq4Xs => "iq4_xs",
            GgufBlocks::Iq1S => "iq1_s",
            GgufBlocks::Iq1M => "iq1_m",
            GgufBlocks::Iq2Xxs => "iq2_xxs",
            GgufBlocks::Iq2Xs => "iq2_xs",
            GgufBlocks::Iq2S => "iq2_s",
            GgufBlocks::Iq3Xxs => "iq3_xxs",
            GgufBlocks::Iq3S => "iq3_s",
            GgufBlocks::Tq1_0 => "tq1_0",
            GgufBlocks::Tq2_0 => "tq2_0",
            GgufBlocks::Mxfp4 => "mxfp4_gguf",
            GgufBlocks::Nvfp4 => "nvfp4_gguf",
        }
    }

    /// Columns of a block.
    pub const fn cols(self) -> usize {
        match self {
            GgufBlocks::Q4_0
            | GgufBlocks::Q4_1
            | GgufBlocks::Q5_0
            | GgufBlocks::Q5_1
            | GgufBlocks::Q8_0
            | GgufBlocks::Iq4Nl
            | GgufBlocks::Mxfp4 => 32,
            GgufBlocks::Q2K
            | GgufBlocks::Q3K
            | GgufBlocks::Q4K
            | GgufBlocks::Q5K
            | GgufBlocks::Q6K
            | GgufBlocks::Iq4Xs
            | GgufBlocks::Iq1S
            | GgufBlocks::Iq1M
            | GgufBlocks::Iq2Xxs
            | GgufBlocks::Iq2Xs
            | GgufBlocks::Iq2S
            | GgufBlocks::Iq3Xxs
            | GgufBlocks::Iq3S
            | GgufBlocks::Tq1_0
            | GgufBlocks::Tq2_0 => 256,
            GgufBlocks::Nvfp4 => 64,
        }
    }

    /// Bytes of a block.
    pub const fn bytes(self) -> usize {
        match self {
            GgufBlocks::Q4_0 | GgufBlocks::Iq4Nl => 18,
            GgufBlocks::Q4_1 => 20,
            GgufBlocks::Q5_0 => 22,
            GgufBlocks::Q5_1 => 24,
            GgufBlocks::Q8_0 => 34,
            GgufBlocks::Q2K => 84,
            GgufBlocks::Q3K | GgufBlocks::Iq3S => 110,
            GgufBlocks::Q4K => 144,
            GgufBlocks::Q5K => 176,
            GgufBlocks::Q6K => 210,
            GgufBlocks::Iq4Xs => 136,
            GgufBlocks::Iq1S => 50,
            GgufBlocks::Iq1M => 56,
            GgufBlocks::Iq2Xxs | GgufBlocks::Tq2_0 => 66,
            GgufBlocks::Iq2Xs => 74,
            GgufBlocks::Iq2S => 82,
            GgufBlocks::Iq3Xxs => 98,
            GgufBlocks::Tq1_0 => 54,
            GgufBlocks::Mxfp4 => 17,
            GgufBlocks::Nvfp4 => 36,
        }
    }

    /// Offsets in a block of the f16 numbers that scale its weights; none for scales of a byte. Of
    /// [`Iq1M`](Self::Iq1M), which has its scale in parts, that of the upper four bits.
    pub const fn scales(self) -> &'static [usize] {
        match self {
            GgufBlocks::Q4_0
            | GgufBlocks::Q5_0
            | GgufBlocks::Q8_0
            | GgufBlocks::Iq4Nl
            | GgufBlocks::Iq4Xs
            | GgufBlocks::Iq1S
            | GgufBlocks::Iq2Xxs
            | GgufBlocks::Iq2Xs
            | GgufBlocks::Iq2S
            | GgufBlocks::Iq3Xxs
            | GgufBlocks::Iq3S => &[0],
            GgufBlocks::Iq1M => &[54],
            GgufBlocks::Q4_1 | GgufBlocks::Q5_1 | GgufBlocks::Q4K | GgufBlocks::Q5K => &[0, 2],
            GgufBlocks::Q2K => &[80, 82],
            GgufBlocks::Q3K => &[108],
            GgufBlocks::Q6K => &[208],
            GgufBlocks::Tq1_0 => &[52],
            GgufBlocks::Tq2_0 => &[64],
            GgufBlocks::Mxfp4 | GgufBlocks::Nvfp4 => &[],
        }
    }

    /// How weights are summed as codes.
    const fn coding(self) -> Option<Coding> {
        let (run, less) = match self {
            GgufBlocks::Q4_0 => (32, Some(8)),
            GgufBlocks::Q5_0 => (32, Some(16)),
            GgufBlocks::Q4_1 | GgufBlocks::Q5_1 | GgufBlocks::Q4K | GgufBlocks::Q5K => (32, None),
            GgufBlocks::Q2K => (16, None),
            GgufBlocks::Q3K => (16, Some(4)),
            GgufBlocks::Q6K => (16, Some(32)),
            GgufBlocks::Iq4Nl | GgufBlocks::Iq4Xs => (32, Some(127)),
            GgufBlocks::Iq1S => (32, Some(9)),
            GgufBlocks::Iq1M => (16, Some(9)),
            GgufBlocks::Iq2Xxs => (32, Some(43)),
            GgufBlocks::Iq2Xs | GgufBlocks::Iq2S => (16, Some(43)),
            GgufBlocks::Iq3Xxs => (32, Some(62)),
            GgufBlocks::Iq3S => (32, Some(15)),
            GgufBlocks::Tq1_0 | GgufBlocks::Tq2_0 => (32, Some(1)),
            GgufBlocks::Nvfp4 => (16, Some(12)),
            GgufBlocks::Q8_0 | GgufBlocks::Mxfp4 => return None,
        };
        Some(Coding::neighbours(run, less))
    }

    /// How codes are multiplied with rounded activations.
    const fn form(self) -> Option<CodeForm> {
        let plain = CodeForm::NIBBLES;
        Some(match self {
            GgufBlocks::Q4_0 => CodeForm { less: 8, ..plain },
            GgufBlocks::Q5_0 => CodeForm { less: 16, most: 31, ..plain },
            GgufBlocks::Q4_1 | GgufBlocks::Q4K => CodeForm { minima: true, ..plain },
            GgufBlocks::Q5_1 | GgufBlocks::Q5K => CodeForm { minima: true, most: 31, ..plain },
            GgufBlocks::Q8_0 => CodeForm::BYTES,
            GgufBlocks::Q2K => CodeForm { minima: true, runs: true, most: 3, ..plain },
            GgufBlocks::Q3K => CodeForm { less: 4, runs: true, most: 7, ..plain },
            GgufBlocks::Q6K => CodeForm { less: 32, runs: true, most: 63, ..plain },
            GgufBlocks::Iq4Nl | GgufBlocks::Iq4Xs => CodeForm { signed: true, most: 127, ..plain },
            GgufBlocks::Tq2_0 => CodeForm { less: 1, most: 3, ..plain },
            GgufBlocks::Mxfp4 => CodeForm::E2M1,
            _ => return None,
        })
    }
}

/// The one part of each format, in the order of its variants.
static PARTS: [[MatrixPart; 1]; GgufBlocks::ALL.len()] = {
    let mut all = [[MatrixPart::rows_of("", 1, 1)]; GgufBlocks::ALL.len()];
    let mut i = 0;
    while i < all.len() {
        let blocks = GgufBlocks::ALL[i];
        let bytes = blocks.bytes() as u64;
        all[blocks as usize] = [MatrixPart::rows_of("", blocks.cols() as u64, bytes)];
        i += 1;
    }
    all
};

/// The facts of each format, in the order of its variants.
pub(super) static FACTS: [Facts; GgufBlocks::ALL.len()] = {
    let mut all = [Facts::new("", &[]); GgufBlocks::ALL.len()];
    let mut i = 0;
    while i < all.len() {
        let blocks = GgufBlocks::ALL[i];
        all[blocks as usize] = Facts {
            made: match blocks {
                GgufBlocks::Q8_0 => Made::FromNumbers,
                _ => Made::OnlyRead,
            },
            coding: blocks.coding(),
            form: blocks.form(),
            powers: match blocks {
                GgufBlocks::Mxfp4 => Some(0),
                _ => None,
            },
            ..Facts::new(blocks.name(), &PARTS[blocks as usize])
        };
        i += 1;
    }
    all
};
