//! Devices of OpenCL 1.2 and later.

mod raw;

use std::time::Duration;

use crate::device::{ComputeDevice, DeviceBuffer, DeviceError, DeviceFacts, KernelLaunch};
use crate::kernel::{Flaw, Kernel, KernelDialect, ROWS, source_text};
pub(crate) use raw::STAGING;
use raw::{ListedDevice, Memory, OpenQueue};

/// What calls return where the device has no memory left.
const NO_MEMORY: i32 = -4;
const NO_RESOURCES: i32 = -5;

/// Numbers of facts about devices in `CL/cl.h`.
const TYPE: u32 = 0x1000;
const MOST_THREADS: u32 = 0x1004;
const MOST_ALLOCATED: u32 = 0x1010;
const MEMORY: u32 = 0x101f;
const LITTLE_ENDIAN: u32 = 0x1026;
const SHARES_MEMORY: u32 = 0x1035;
const AVAILABLE: u32 = 0x1027;
const COMPILES: u32 = 0x1028;
const NAME: u32 = 0x102b;
const DRIVER: u32 = 0x102d;
const VERSION: u32 = 0x102f;

/// Bit of a device's type.
const IS_CPU: u64 = 1 << 1;

/// A call that failed, or did not end in time.
#[derive(Clone, Debug, PartialEq, Eq)]
enum CallError {
    Failed { call: &'static str, status: i32 },
    TimedOut,
    Build(String),
    NoLibrary(String),
}

/// A device of an OpenCL driver, with the kernels compiled for it.
pub struct OpenClDevice {
    facts: DeviceFacts,
    opened: OpenQueue,
    buffers: Vec<Option<Memory>>,
    limit: Duration,
}

impl std::fmt::Debug for OpenClDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OpenClDevice").field("facts", &self.facts).finish_non_exhaustive()
    }
}

impl OpenClDevice {
    /// The time limit of a command. A kernel that takes longer delays a desktop by as much.
    pub const LIMIT: Duration = Duration::from_secs(10);

    /// All devices, in the order of their drivers.
    pub fn list() -> Result<Vec<DeviceFacts>, DeviceError> {
        Ok(listed()?.iter().map(facts_of).collect())
    }

    /// Opens the device with this number in [`list`](Self::list), and compiles the kernels for it. Its bits are not
    /// checked yet: [`check`](crate::check()) does that.
    ///
    /// # Panics
    ///
    /// If there is no such device.
    pub fn open(number: usize, limit: Duration, flaw: Flaw) -> Result<OpenClDevice, DeviceError> {
        let listed = listed()?[number];
        let facts = facts_of(&listed);
        if let Some(cause) = lacking(&listed) {
            return Err(DeviceError::Unfit { device: facts.name, cause });
        }
        let source = source_text(KernelDialect::OpenCl, flaw);
        let names = Kernel::ALL.iter().map(|kernel| kernel.symbol());
        let opened = listed.open(&source, names, limit);
        let opened = opened.map_err(|error| failed(&facts, limit, error))?;
        Ok(OpenClDevice { facts, opened, buffers: Vec::new(), limit })
    }

    fn failed(&self, error: CallError) -> DeviceError {
        failed(&self.facts, self.limit, error)
    }

    fn refused(&self, bytes: u64) -> DeviceError {
        DeviceError::OutOfMemory { device: self.facts.name.clone(), bytes }
    }
}

fn listed() -> Result<&'static [ListedDevice], DeviceError> {
    match raw::list() {
        Ok([]) => Err(DeviceError::NoDevices),
        Ok(devices) => Ok(devices),
        Err(CallError::NoLibrary(cause)) => Err(DeviceError::NoLibrary { cause }),
        Err(_) => Err(DeviceError::NoDevices),
    }
}

fn facts_of(device: &ListedDevice) -> DeviceFacts {
    let is_accelerator = device.number(TYPE) & IS_CPU == 0;
    DeviceFacts {
        name: device.text(NAME),
        driver: format!("{}, {}", device.text(VERSION), device.text(DRIVER)),
        memory: device.number(MEMORY),
        largest: device.number(MOST_ALLOCATED),
        is_accelerator,
        shares_memory: !is_accelerator || device.number(SHARES_MEMORY) != 0,
    }
}

/// A reason why a device cannot run the kernels.
fn lacking(device: &ListedDevice) -> Option<String> {
    let lacks = |fact| device.number(fact) == 0;
    let threads = u64::from(32 * ROWS);
    let version = device.text(VERSION);
    let old = ["OpenCL 1.0", "OpenCL 1.1"].iter().any(|old| version.starts_with(old));
    Some(match () {
        () if lacks(AVAILABLE) => "its driver says that it is not available".to_owned(),
        () if lacks(COMPILES) => "its driver has no compiler".to_owned(),
        () if lacks(LITTLE_ENDIAN) => "its numbers begin with the highest byte".to_owned(),
        () if old => format!("its driver has {version}, and 1.2 is needed"),
        () if device.number(MOST_THREADS) < threads => {
            format!("it runs fewer than {threads} threads together")
        }
        () => return None,
    })
}

fn failed(facts: &DeviceFacts, limit: Duration, error: CallError) -> DeviceError {
    let device = facts.name.clone();
    match error {
        CallError::TimedOut => DeviceError::Hung { device, limit },
        CallError::Build(cause) => DeviceError::Build { device, cause },
        CallError::NoLibrary(cause) => DeviceError::NoLibrary { cause },
        // Drivers may allocate with the first use.
        CallError::Failed { status: NO_MEMORY | NO_RESOURCES, .. } => {
            DeviceError::OutOfMemory { device, bytes: facts.memory }
        }
        CallError::Failed { call, status } => {
            DeviceError::Lost { device, cause: format!("{call} returned {status}") }
        }
    }
}

impl ComputeDevice for OpenClDevice {
    fn facts(&self) -> &DeviceFacts {
        &self.facts
    }

    fn allocate(&mut self, bytes: u64) -> Result<DeviceBuffer, DeviceError> {
        if bytes == 0 || bytes > self.facts.largest {
            return Err(self.refused(bytes));
        }
        let Ok(len) = usize::try_from(bytes) else { return Err(self.refused(bytes)) };
        let Ok(memory) = self.opened.allocate(len) else { return Err(self.refused(bytes)) };
        let free = self.buffers.iter().position(Option::is_none);
        let number = free.unwrap_or(self.buffers.len());
        match free {
            Some(number) => self.buffers[number] = Some(memory),
            None => self.buffers.push(Some(memory)),
        }
        Ok(DeviceBuffer(number))
    }

    fn free(&mut self, buffer: DeviceBuffer) {
        if let Some(memory) = self.buffers.get_mut(buffer.0).and_then(Option::take) {
            self.opened.release(memory);
        }
    }

    fn write(&mut self, to: DeviceBuffer, at: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        let memory = self.buffers[to.0].as_ref().expect("a buffer that is not freed");
        let at = usize::try_from(at).expect("bytes within the buffer");
        self.opened.write(memory, at, bytes).map_err(|error| self.failed(error))
    }

    fn read(&mut self, from: DeviceBuffer, at: u64, bytes: &mut [u8]) -> Result<(), DeviceError> {
        let memory = self.buffers[from.0].as_ref().expect("a buffer that is not freed");
        let at = usize::try_from(at).expect("bytes within the buffer");
        self.opened.read(memory, at, bytes).map_err(|error| self.failed(error))
    }

    fn launch(&mut self, launch: &KernelLaunch<'_>) -> Result<(), DeviceError> {
        let KernelLaunch { jobs, weights, inputs, outputs, words } = *launch;
        let memories = [weights, inputs, outputs, words]
            .map(|buffer| self.buffers[buffer.0].as_ref().expect("a buffer that is not freed"));
        self.opened.launch(jobs, memories).map_err(|error| self.failed(error))
    }
}

impl Drop for OpenClDevice {
    fn drop(&mut self) {
        for number in 0..self.buffers.len() {
            self.free(DeviceBuffer(number));
        }
    }
}
