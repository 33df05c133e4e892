//! The seam between arithmetic and devices.

use std::time::Duration;

use crate::job::DeviceJob;

/// Memory of a device's own, and [kernels](crate::Kernel) that read and write it.
///
/// After [`DeviceError::Lost`] or [`DeviceError::Hung`] a device answers nothing else any more.
pub trait ComputeDevice: Send {
    /// Facts about the device.
    fn facts(&self) -> &DeviceFacts;

    /// Allocates so many bytes, with any contents.
    fn allocate(&mut self, bytes: u64) -> Result<DeviceBuffer, DeviceError>;

    /// Frees a buffer, whose name may then be used again.
    fn free(&mut self, buffer: DeviceBuffer);

    /// Writes bytes from an offset on, and waits until they are there.
    ///
    /// # Panics
    ///
    /// If they are not all within the buffer.
    fn write(&mut self, to: DeviceBuffer, at: u64, bytes: &[u8]) -> Result<(), DeviceError>;

    /// Reads the bytes from an offset on.
    ///
    /// # Panics
    ///
    /// If they are not all within the buffer.
    fn read(&mut self, from: DeviceBuffer, at: u64, bytes: &mut [u8]) -> Result<(), DeviceError>;

    /// Runs jobs of one kernel, and waits for their end.
    ///
    /// # Panics
    ///
    /// If a job is not within the buffers.
    fn launch(&mut self, launch: &KernelLaunch<'_>) -> Result<(), DeviceError>;
}

/// Facts about a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceFacts {
    /// Its name, as its driver gives it.
    pub name: String,
    /// The name and version of its driver.
    pub driver: String,
    /// Bytes of its memory.
    pub memory: u64,
    /// Bytes of the largest buffer.
    pub largest: u64,
    /// True for a graphics card or another accelerator, false for a CPU.
    pub is_accelerator: bool,
    /// True if its memory is that of the machine.
    pub shares_memory: bool,
}

/// The number of a buffer in its device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DeviceBuffer(pub usize);

impl DeviceFacts {
    /// The number of the device to use: a card with memory of its own before others, a larger one before a smaller one.
    pub fn best(devices: &[DeviceFacts]) -> Option<usize> {
        // The first of several alike.
        let numbered = devices.iter().enumerate().rev();
        Some(numbered.max_by_key(|(_, device)| device.worth())?.0)
    }

    fn worth(&self) -> (bool, bool, u64) {
        (self.is_accelerator && !self.shares_memory, self.is_accelerator, self.memory)
    }
}

/// Jobs of one kernel, and the buffers that they are in.
#[derive(Clone, Copy, Debug)]
pub struct KernelLaunch<'a> {
    /// The jobs.
    pub jobs: &'a [DeviceJob],
    /// Bytes of weights.
    pub weights: DeviceBuffer,
    /// Activations, and their sums.
    pub inputs: DeviceBuffer,
    /// Results.
    pub outputs: DeviceBuffer,
    /// Room for the words of the jobs.
    pub words: DeviceBuffer,
}

/// Reasons why a device is not used, or not any more.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum DeviceError {
    /// No library of drivers.
    #[error(
        "no OpenCL library could be loaded ({cause}); install the driver of the graphics card with its OpenCL part, or leave experts to the CPU"
    )]
    NoLibrary { cause: String },
    /// A library that lists no devices.
    #[error(
        "OpenCL lists no devices; install the driver of the graphics card with its OpenCL part, or leave experts to the CPU"
    )]
    NoDevices,
    /// A device that cannot run the kernels.
    #[error("the device `{device}` cannot be used, as {cause}; leave experts to the CPU")]
    Unfit { device: String, cause: String },
    /// A kernel that the driver's compiler refuses.
    #[error(
        "the driver of `{device}` does not compile the kernels ({cause}); update it, or leave experts to the CPU"
    )]
    Build { device: String, cause: String },
    /// Other bits than this CPU's.
    #[error(
        "the device `{device}` computes other bits than this CPU ({case}), so it is not used; update its driver, or leave experts to the CPU"
    )]
    OtherBits { device: String, case: String },
    /// An allocation that the driver refuses.
    #[error("the device `{device}` has no {bytes} bytes left; lower the limit of its memory")]
    OutOfMemory { device: String, bytes: u64 },
    /// A limit too small for the experts of a model.
    #[error(
        "the limit of {limit} bytes for `{device}` leaves no room for an expert, as at least {needed} bytes are needed; raise it, or leave experts to the CPU"
    )]
    TooSmall { device: String, limit: u64, needed: u64 },
    /// A call that failed, after which the device is not used.
    #[error("the device `{device}` failed ({cause}); leave experts to the CPU")]
    Lost { device: String, cause: String },
    /// A call that did not end in time, after which the device is not used.
    #[error(
        "the device `{device}` did not answer within {} ms; leave experts to the CPU",
        limit.as_millis()
    )]
    Hung { device: String, limit: Duration },
    /// Bytes in its memory that are not those that were written.
    #[error(
        "the memory of the device `{device}` has changed ({what}), so texts made with it may differ: make them again, leave experts to the CPU, and test the device"
    )]
    Corrupt { device: String, what: String },
}
