//! Memory of a graphics card, as a further place for experts.

use std::str::FromStr;

use sws_engine::{ExpertTier, RamBudget};
use sws_format::Manifest;
use sws_kernels::Activations;
use sws_model::Inventory;

use crate::{Error, Loader, Result};

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
}

/// A device that passed its check, without experts.
#[derive(Debug)]
pub(crate) struct OpenedTier {
    tier: Box<dyn ExpertTier>,
    /// Bytes of the machine's memory that it takes.
    host_bytes: u64,
}

impl Vram {
    /// Opens a device for the experts of a model, and checks it. A named size that cannot be had is an error.
    pub(crate) fn open(loader: &Loader<'_>, inventory: &Inventory) -> Result<Vram> {
        let options = &loader.options;
        let limit = match options.vram {
            VramChoice::Off => return Ok(Vram::Off),
            VramChoice::Auto => None,
            VramChoice::Bytes(bytes) => Some(bytes),
        };
        match device::open(limit, inventory, loader.model.manifest(), options.activations) {
            Ok(opened) => Ok(Vram::Open(opened)),
            Err(why) => Vram::unusable(options.vram, why),
        }
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
        }
    }

    /// The tier; `Err` with the reason if none can be used.
    pub(crate) fn into_tier(self) -> Result<Option<Box<dyn ExpertTier>>, String> {
        match self {
            Vram::Off => Ok(None),
            Vram::Unusable(why) => Err(why),
            Vram::Open(opened) => Ok(Some(opened.tier)),
        }
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

    use super::{Activations, Inventory, Manifest, OpenedTier, VramDevice};
    use crate::Size;

    /// Memory of a device that its check may take.
    const CHECK: u64 = 16 << 20;

    pub(super) fn open(
        limit: Option<u64>,
        inventory: &Inventory,
        manifest: &Manifest,
        activations: Activations,
    ) -> Result<OpenedTier, String> {
        let Some(shape) = VramShape::of(inventory, manifest, activations) else {
            return Err(
                "the model has no experts in an encoding that devices compute; leave out --vram"
                    .to_owned(),
            );
        };
        let devices = OpenClDevice::list().map_err(sentence)?;
        let number = DeviceFacts::best(&devices).unwrap_or(0);
        let DeviceFacts { name, memory, shares_memory, .. } = devices[number].clone();
        let limit = match limit {
            None if shares_memory => {
                return Err(format!(
                    "the device `{name}` has no memory of its own, so nothing is gained; name a size with --vram to use it nevertheless"
                ));
            }
            None => VramLedger::auto(memory),
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
    use super::{Activations, Inventory, Manifest, OpenedTier, VramDevice};

    const ABSENT: &str = "this sws was built without support for graphics cards; build it with `cargo build --release --features gpu`, take a release, or leave out --vram";

    pub(super) fn open(
        _: Option<u64>,
        _: &Inventory,
        _: &Manifest,
        _: Activations,
    ) -> Result<OpenedTier, String> {
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
