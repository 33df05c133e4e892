//! Experts in the memory of a graphics card, and computed there, with the bits of the CPU.
//!
//! # Main types
//!
//! - [`ComputeDevice`] is the seam: memory of its own, and a fixed set of [`Kernel`]s. [`OpenClDevice`] is a driver's; tests
//!   have devices that fail, hang or err.
//! - [`check()`](check()) refuses a device that computes other bits than this CPU, at each start.
//! - [`DeviceMatrix`] is an encoded matrix as it lies there, and [`Exchange`] multiplies such matrices by vectors.
//! - [`VramExperts`] holds copies of experts within a limit ([`VramLedger`]). It is an
//!   [`ExpertTier`](sws_engine::ExpertTier) of the engine: experts that it holds are computed on the device. After any error of
//!   the device it holds none, and what it was asked for is served again from the CPU's weights.
//!
//! The driver's library is loaded when a device is asked for. Without one there are no devices, and that is said in one
//! sentence.
//!
//! # The same bits
//!
//! The kernels repeat the sums that `docs/design/sums.md` defines: an f32 `fma` that is rounded once, subnormal numbers
//! that are kept, and no other order. One source in `src/kernels` serves OpenCL C and CUDA C, by a header of words for
//! each. [`Kernel::of`] says which encodings it has; others stay on the CPU.
//!
//! ```
//! use sws_gpu::{Kernel, OpenClDevice};
//! use sws_kernels::Encoding;
//!
//! assert!(Kernel::of(Encoding::Bf16).is_some());
//! match OpenClDevice::list() {
//!     Ok(devices) => devices.iter().for_each(|device| assert!(!device.name.is_empty())),
//!     Err(error) => assert!(error.to_string().contains("OpenCL")),
//! }
//! ```

mod check;
mod device;
mod exchange;
mod executor;
mod experts;
mod job;
mod kernel;
mod ledger;
mod matrix;
mod opencl;
mod sample;
mod tier;

pub use check::{CheckedCases, check};
pub use device::{ComputeDevice, DeviceBuffer, DeviceError, DeviceFacts, KernelLaunch};
pub use exchange::{DeviceProduct, Exchange, ExchangeSize};
pub use experts::{ExpertTensor, VramExperts, VramShape};
pub use job::DeviceJob;
pub use kernel::{Flaw, Kernel, KernelDialect, source_text};
pub use ledger::{VramLedger, VramLine};
pub use matrix::{DeviceMatrix, MatrixBytes};
pub use opencl::OpenClDevice;
pub use sample::SampleNumbers;
