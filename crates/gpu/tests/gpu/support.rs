//! Devices of tests.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sws_gpu::{
    ComputeDevice, DeviceBuffer, DeviceError, DeviceFacts, Flaw, KernelLaunch, OpenClDevice,
};

/// The turn of a test, as all devices of PoCL share its threads, and one test keeps them busy.
pub(crate) fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The first device of OpenCL; none, and a sentence, where there is none.
pub(crate) fn device() -> Option<OpenClDevice> {
    flawed(Flaw::None)
}

/// The same with kernels that are wrong in some way.
pub(crate) fn flawed(flaw: Flaw) -> Option<OpenClDevice> {
    match OpenClDevice::list() {
        Ok(_) => Some(OpenClDevice::open(0, PATIENCE, flaw).unwrap()),
        Err(error) => {
            eprintln!("skipped: {error}");
            None
        }
    }
}

/// The time limit of a command where nothing hangs, on a machine with other work.
const PATIENCE: Duration = Duration::from_secs(120);

/// True for the same bits, or two NaNs.
pub(crate) fn same(a: f32, b: f32) -> bool {
    a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan()
}

/// Ways in which a call of a device goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// The device is lost.
    Lost,
    /// A call does not end in time.
    Hung,
    /// No memory is left.
    Full,
    /// One bit of what is read is another.
    Flip,
    /// One bit of what is written is another.
    FlipWritten,
}

impl Trouble {
    /// True if a call of this name can go wrong so.
    fn is_of(self, call: &str) -> bool {
        match self {
            Trouble::Lost | Trouble::Hung | Trouble::Full => true,
            Trouble::Flip => call == "read",
            Trouble::FlipWritten => call == "write",
        }
    }
}

/// The call that goes wrong, of those that can, and the number of these from now on.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    pub(crate) at: Option<(u64, Trouble)>,
    pub(crate) calls: u64,
}

/// A device that goes wrong once, after which it is lost, or right again if a bit was flipped.
pub(crate) struct Troubled {
    inner: Box<dyn ComputeDevice>,
    plan: Arc<Mutex<Plan>>,
    lost: Option<DeviceError>,
}

impl Troubled {
    pub(crate) fn new(inner: OpenClDevice) -> (Troubled, Arc<Mutex<Plan>>) {
        let plan = Arc::new(Mutex::new(Plan::default()));
        (Troubled { inner: Box::new(inner), plan: plan.clone(), lost: None }, plan)
    }

    /// Counts a call; returns what goes wrong with it.
    fn call(&mut self, name: &str) -> Result<Option<Trouble>, DeviceError> {
        if let Some(error) = &self.lost {
            return Err(error.clone());
        }
        let mut plan = self.plan.lock().unwrap();
        let counts = plan.at.is_none_or(|(_, trouble)| trouble.is_of(name));
        plan.calls += u64::from(counts);
        let now = plan.at.filter(|(at, _)| counts && *at == plan.calls).map(|(_, trouble)| trouble);
        let device = self.inner.facts().name.clone();
        let error = match now {
            Some(Trouble::Lost) => DeviceError::Lost { device, cause: "a test".to_owned() },
            Some(Trouble::Hung) => DeviceError::Hung { device, limit: OpenClDevice::LIMIT },
            Some(Trouble::Full) => return Err(DeviceError::OutOfMemory { device, bytes: 1 }),
            flip => return Ok(flip),
        };
        self.lost = Some(error.clone());
        Err(error)
    }
}

impl ComputeDevice for Troubled {
    fn facts(&self) -> &DeviceFacts {
        self.inner.facts()
    }

    fn allocate(&mut self, bytes: u64) -> Result<DeviceBuffer, DeviceError> {
        self.call("allocate")?;
        self.inner.allocate(bytes)
    }

    fn free(&mut self, buffer: DeviceBuffer) {
        self.inner.free(buffer);
    }

    fn write(&mut self, to: DeviceBuffer, at: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        if self.call("write")? == Some(Trouble::FlipWritten) {
            let mut bytes = bytes.to_vec();
            let middle = bytes.len() / 2;
            bytes[middle] ^= 0x10;
            return self.inner.write(to, at, &bytes);
        }
        self.inner.write(to, at, bytes)
    }

    fn read(&mut self, from: DeviceBuffer, at: u64, bytes: &mut [u8]) -> Result<(), DeviceError> {
        let trouble = self.call("read")?;
        self.inner.read(from, at, bytes)?;
        if trouble == Some(Trouble::Flip) {
            bytes[0] ^= 1;
        }
        Ok(())
    }

    fn launch(&mut self, launch: &KernelLaunch<'_>) -> Result<(), DeviceError> {
        self.call("launch")?;
        self.inner.launch(launch)
    }
}
