//! Memory of a graphics card, as a further place for experts.

use std::str::FromStr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::Serialize;
use sws_engine::{ExpertTier, RamBudget};
use sws_format::Manifest;
use sws_kernels::Activations;
use sws_model::Inventory;

use super::planning::inventory;
use crate::{Error, Loader, Model, Result};

/// Memory of a graphics card for experts. The output does not depend on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum VramChoice {
    /// None.
    #[default]
    Off,
    /// As much as a card has, less a reserve for the desktop. Without a card that can be used, the run goes on
    /// on the CPU with a [warning](crate::Warning::NoVram).
    Auto,
    /// So many bytes, of any OpenCL device.
    Bytes(u64),
}

impl FromStr for VramChoice {
    type Err = String;

    fn from_str(word: &str) -> Result<VramChoice, String> {
        match word {
            "off" => Ok(VramChoice::Off),
            "auto" => Ok(VramChoice::Auto),
            _ => match word.parse() {
                Ok(RamBudget::Bytes(bytes)) => Ok(VramChoice::Bytes(bytes)),
                _ => Err("expected auto, off, or a size like 8GiB".to_owned()),
            },
        }
    }
}

/// The tier of a run on a graphics card.
#[derive(Debug, Default)]
pub(crate) enum Vram {
    /// None is wanted.
    #[default]
    Off,
    /// None can be used, for this reason.
    Unusable(String),
    Open(OpenedTier),
    /// It takes so many bytes of the machine's memory, and is opened when the model is loaded.
    Planned(u64),
}

/// A device that passed its check, without experts.
#[derive(Debug)]
pub(crate) struct OpenedTier {
    tier: Box<dyn ExpertTier>,
    /// Bytes of the machine's memory that it takes.
    host_bytes: u64,
}

/// What plans of a model have found out about its tier: it is opened and checked once for all plans and a run.
#[derive(Clone, Debug, Default)]
pub(crate) struct KeptVram(Arc<Mutex<Option<KeptTier>>>);

/// The tier that was asked for.
type AskedTier = (VramChoice, Activations);

#[derive(Debug)]
struct KeptTier {
    asked: AskedTier,
    /// Bytes of the machine's memory that it takes, or the reason why there is none.
    host_bytes: Result<u64, String>,
    /// The device, until the model is loaded.
    opened: Option<OpenedTier>,
}

impl KeptVram {
    fn lock(&self) -> MutexGuard<'_, Option<KeptTier>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes of the machine's memory that a tier takes, or the reason why there is none. Only the first plan with this
    /// choice opens the device; it is kept for a run if `keeps` is true.
    fn planned(
        &self,
        asked: AskedTier,
        keeps: bool,
        open: impl FnOnce() -> Result<Result<OpenedTier, String>>,
    ) -> Result<Result<u64, String>> {
        let mut kept = self.lock();
        if let Some(known) = kept.as_ref().filter(|kept| kept.asked == asked) {
            return Ok(known.host_bytes.clone());
        }
        // Its memory is needed now.
        kept.take();
        let (host_bytes, opened) = match open()? {
            Ok(opened) => (Ok(opened.host_bytes), keeps.then_some(opened)),
            Err(why) => (Err(why), None),
        };
        *kept = Some(KeptTier { asked, host_bytes: host_bytes.clone(), opened });
        Ok(host_bytes)
    }
}

impl Vram {
    /// The device of a run: that which a plan has kept, or a newly opened one.
    pub(crate) fn open(loader: &Loader<'_>) -> Result<Vram> {
        let asked = (loader.options.vram, loader.options.activations);
        let mut kept = loader.model.kept_vram().lock();
        let known = kept.as_mut().filter(|kept| kept.asked == asked);
        match known.and_then(|kept| kept.opened.take()) {
            Some(opened) => Ok(Vram::Open(opened)),
            None => {
                // Its memory is needed now.
                kept.take();
                Vram::open_anew(loader)
            }
        }
    }

    /// What a plan has to know: a device is opened for the first one, which loads its driver too.
    pub(crate) fn planned(loader: &Loader<'_>) -> Result<Vram> {
        if let Some(bytes) = loader.beside_vram {
            return Ok(Vram::Planned(bytes));
        }
        let wanted = loader.options.vram;
        if wanted == VramChoice::Off {
            return Ok(Vram::Off);
        }
        let asked = (wanted, loader.options.activations);
        let kept = loader.model.kept_vram();
        match kept.planned(asked, loader.keeps_vram, || Vram::open_device(loader))? {
            Ok(bytes) => Ok(Vram::Planned(bytes)),
            Err(why) => Vram::unusable(wanted, why),
        }
    }

    /// Opens a device for the experts of a model, and checks it. A named size that cannot be had is an error.
    fn open_anew(loader: &Loader<'_>) -> Result<Vram> {
        if loader.options.vram == VramChoice::Off {
            return Ok(Vram::Off);
        }
        match Vram::open_device(loader)? {
            Ok(opened) => Ok(Vram::Open(opened)),
            Err(why) => Vram::unusable(loader.options.vram, why),
        }
    }

    /// Opens and checks a device; `Err` within has the reason why none can be used.
    fn open_device(loader: &Loader<'_>) -> Result<Result<OpenedTier, String>> {
        let options = &loader.options;
        let limit = match options.vram {
            VramChoice::Off | VramChoice::Auto => None,
            VramChoice::Bytes(bytes) => Some(bytes),
        };
        let inventory = inventory(loader)?;
        Ok(device::open(limit, &inventory, loader.model.manifest(), options.activations))
    }

    /// The outcome where a tier is wanted and cannot be had.
    pub(crate) fn unusable(wanted: VramChoice, why: String) -> Result<Vram> {
        match wanted {
            VramChoice::Bytes(_) => Err(Error::Vram(why)),
            VramChoice::Off | VramChoice::Auto => Ok(Vram::Unusable(why)),
        }
    }

    /// Bytes of the machine's memory that it takes.
    pub(crate) fn host_bytes(&self) -> u64 {
        match self {
            Vram::Off | Vram::Unusable(_) => 0,
            Vram::Open(opened) => opened.host_bytes,
            Vram::Planned(bytes) => *bytes,
        }
    }

    /// The tier; `Err` with the reason if none can be used.
    pub(crate) fn into_tier(self) -> Result<Option<Box<dyn ExpertTier>>, String> {
        match self {
            Vram::Off | Vram::Planned(_) => Ok(None),
            Vram::Unusable(why) => Err(why),
            Vram::Open(opened) => Ok(Some(opened.tier)),
        }
    }
}

/// Experts of a model in the memory of a graphics card, counted without one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct VramPlan {
    /// Bytes that may be used of the card: no more than all experts take.
    pub limit: u64,
    /// Bytes of the buffers there, as its ledger counts them.
    pub bytes: u64,
    /// Experts that have room there.
    pub slots: u64,
    /// Experts of the model that a card can compute.
    pub experts: u64,
    /// Bytes of the machine's memory beside the card, without its driver.
    pub host_bytes: u64,
}

impl VramPlan {
    /// The experts of a model within a limit. An error says why there are none.
    pub fn of(model: &Model, limit: u64, activations: Activations) -> Result<VramPlan> {
        let inventory =
            Inventory::new(model.spec(), model.manifest()).map_err(|e| model.error(e))?;
        VramPlan::within(limit, &inventory, model.manifest(), activations)
    }

    pub(crate) fn within(
        limit: u64,
        inventory: &Inventory,
        manifest: &Manifest,
        activations: Activations,
    ) -> Result<VramPlan> {
        device::plan(limit, inventory, manifest, activations).map_err(Error::Vram)
    }
}

impl VramChoice {
    /// The limit of a plan in bytes: for `auto` that of this machine's card, unchecked. An error says why there is none.
    pub fn limit(self) -> Result<Option<u64>> {
        match self {
            VramChoice::Off => Ok(None),
            VramChoice::Bytes(bytes) => Ok(Some(bytes)),
            VramChoice::Auto => device::auto().map(Some).map_err(Error::Vram),
        }
    }
}

impl Loader<'_> {
    /// Plans with so many bytes of the machine's memory for a graphics card, instead of opening one.
    pub fn beside_vram(mut self, bytes: u64) -> Self {
        self.beside_vram = Some(bytes);
        self
    }

    /// Keeps the graphics card that a plan opens until the same model is loaded.
    pub fn keeping_vram(mut self) -> Self {
        self.keeps_vram = true;
        self
    }
}

/// A device that may hold experts, and the result of its check.
#[derive(Clone, Debug)]
pub struct VramDevice {
    /// Its name, as its driver gives it.
    pub name: String,
    /// The name and version of its driver.
    pub driver: String,
    /// Bytes of its memory.
    pub memory: u64,
    /// True if its memory is that of the machine.
    pub shares_memory: bool,
    /// The number of results that it has in common with this CPU, all of those that were compared; or a sentence
    /// about what it lacks.
    pub checked: Result<usize, String>,
}

/// Lists the devices of this machine, each checked with all encodings that devices compute.
pub fn vram_devices() -> Result<Vec<VramDevice>> {
    device::list().map_err(Error::Vram)
}

#[cfg(feature = "gpu")]
mod device {
    use sws_gpu::{
        DeviceError, DeviceFacts, Flaw, Kernel, OpenClDevice, VramExperts, VramLedger, VramShape,
        check,
    };
    use sws_kernels::Encoding;
    use tracing::info;

    use super::{Activations, Inventory, Manifest, OpenedTier, VramDevice, VramPlan};
    use crate::Size;

    /// Memory of a device that its check may take.
    const CHECK: u64 = 16 << 20;

    fn shape(
        inventory: &Inventory,
        manifest: &Manifest,
        activations: Activations,
    ) -> Result<VramShape, String> {
        VramShape::of(inventory, manifest, activations).ok_or_else(|| {
            "the model has no experts in an encoding that devices compute; leave out --vram"
                .to_owned()
        })
    }

    /// The device that is used, of several, and its number.
    fn best() -> Result<(usize, DeviceFacts), String> {
        let mut devices = OpenClDevice::list().map_err(|error| error.to_string())?;
        let number = DeviceFacts::best(&devices).unwrap_or(0);
        Ok((number, devices.swap_remove(number)))
    }

    /// The limit for `auto`.
    fn own_memory(facts: &DeviceFacts) -> Result<u64, String> {
        match facts.shares_memory {
            true => Err(format!(
                "the device `{}` has no memory of its own, so nothing is gained; name a size with --vram to use it nevertheless",
                facts.name
            )),
            false => Ok(VramLedger::auto(facts.memory)),
        }
    }

    pub(super) fn auto() -> Result<u64, String> {
        own_memory(&best()?.1)
    }

    pub(super) fn plan(
        limit: u64,
        inventory: &Inventory,
        manifest: &Manifest,
        activations: Activations,
    ) -> Result<VramPlan, String> {
        let shape = shape(inventory, manifest, activations)?;
        if activations != Activations::F32 {
            return Err("a card has no sums of activations that are rounded to eight bits; leave out --activations, or --vram".to_owned());
        }
        let slots = shape.room(limit);
        if slots == 0 {
            let least = Size(shape.least_bytes());
            return Err(format!(
                "{} of a card have no room for an expert, which needs {least}; raise --vram, or leave it out",
                Size(limit)
            ));
        }
        let (bytes, host_bytes) = (shape.bytes(slots), shape.host_bytes(slots));
        let limit = limit.min(shape.most_bytes());
        Ok(VramPlan { limit, bytes, slots, experts: shape.experts, host_bytes })
    }

    pub(super) fn open(
        limit: Option<u64>,
        inventory: &Inventory,
        manifest: &Manifest,
        activations: Activations,
    ) -> Result<OpenedTier, String> {
        let shape = shape(inventory, manifest, activations)?;
        let (number, facts) = best()?;
        let DeviceFacts { name, memory, shares_memory, .. } = facts.clone();
        let limit = match limit {
            None => own_memory(&facts)?,
            Some(limit) if limit > memory => {
                return Err(format!(
                    "the device `{name}` has {} of memory, and --vram asks for {}; lower it, or leave it out",
                    Size(memory),
                    Size(limit)
                ));
            }
            Some(limit) => limit,
        };
        let limit = limit.min(shape.most_bytes());
        let opened = OpenClDevice::open(number, OpenClDevice::LIMIT, Flaw::None);
        let vram = opened.and_then(|device| VramExperts::open(Box::new(device), limit, &shape));
        let vram = vram.map_err(sentence)?;
        let checked = vram.checked();
        info!(
            "experts may lie in {} of `{name}`, room for {}; {} operations and {} rows have the bits of this CPU",
            Size(limit),
            vram.slots(),
            checked.operations,
            checked.rows
        );
        let shared = if shares_memory { vram.ledger().used() } else { 0 };
        let host_bytes = shape.host_bytes(vram.slots()).saturating_add(shared);
        Ok(OpenedTier { tier: Box::new(vram), host_bytes })
    }

    pub(super) fn list() -> Result<Vec<VramDevice>, String> {
        let encodings: Vec<Encoding> =
            Encoding::ALL.into_iter().filter(|it| Kernel::of(*it).is_some()).collect();
        let mut listed = Vec::new();
        for (number, facts) in OpenClDevice::list().map_err(sentence)?.into_iter().enumerate() {
            let checked = checked(number, &encodings).map_err(sentence);
            let DeviceFacts { name, driver, memory, shares_memory, .. } = facts;
            listed.push(VramDevice { name, driver, memory, shares_memory, checked });
        }
        Ok(listed)
    }

    /// The number of results that a device has in common with this CPU.
    fn checked(number: usize, encodings: &[Encoding]) -> Result<usize, DeviceError> {
        let mut device = OpenClDevice::open(number, OpenClDevice::LIMIT, Flaw::None)?;
        let cases = check(&mut device, encodings, &mut VramLedger::new(CHECK))?;
        Ok(cases.operations + cases.rows)
    }

    fn sentence(error: DeviceError) -> String {
        error.to_string()
    }
}

#[cfg(not(feature = "gpu"))]
mod device {
    use super::{Activations, Inventory, Manifest, OpenedTier, VramDevice, VramPlan};

    const ABSENT: &str = "this sws was built without support for graphics cards; build it with `cargo build --release --features gpu`, take a release, or leave out --vram";

    pub(super) fn open(
        _: Option<u64>,
        _: &Inventory,
        _: &Manifest,
        _: Activations,
    ) -> Result<OpenedTier, String> {
        Err(ABSENT.to_owned())
    }

    pub(super) fn plan(
        _: u64,
        _: &Inventory,
        _: &Manifest,
        _: Activations,
    ) -> Result<VramPlan, String> {
        Err(ABSENT.to_owned())
    }

    pub(super) fn auto() -> Result<u64, String> {
        Err(ABSENT.to_owned())
    }

    pub(super) fn list() -> Result<Vec<VramDevice>, String> {
        Err(ABSENT.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_that_fails_is_opened_once_for_all_plans() {
        let kept = KeptVram::default();
        let failing = (VramChoice::Auto, Activations::F32);
        let opened = std::cell::Cell::new(0);
        let plan = |asked, keeps| {
            let open = || {
                opened.set(opened.get() + 1);
                Ok(Err("no device".to_owned()))
            };
            (kept.planned(asked, keeps, open).unwrap(), opened.get())
        };
        let why = || Err("no device".to_owned());
        assert_eq!(plan(failing, false), (why(), 1));
        assert_eq!(plan(failing, true), (why(), 1));
        // Another size may be had.
        assert_eq!(plan((VramChoice::Bytes(1 << 30), Activations::F32), false), (why(), 2));
        assert_eq!(plan(failing, false), (why(), 3), "the last choice is remembered");
    }

    #[test]
    fn words_of_vram() {
        for (word, choice) in [
            ("off", Some(VramChoice::Off)),
            ("auto", Some(VramChoice::Auto)),
            ("8GiB", Some(VramChoice::Bytes(8 << 30))),
            ("80%", None),
            ("min", None),
            ("", None),
        ] {
            assert_eq!(word.parse().ok(), choice, "{word}");
        }
    }
}
