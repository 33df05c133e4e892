//! Checks of graphics cards.

use sws::{VramDevice, vram_devices};

use super::DoctorLine;
use crate::commands::size;

/// A line for each device, which has the bits of this CPU or not.
pub(super) fn lines() -> Vec<DoctorLine> {
    match vram_devices() {
        Ok(devices) => devices.iter().map(line).collect(),
        Err(none) => vec![DoctorLine::ok("graphics card", none.to_string())],
    }
}

fn line(device: &VramDevice) -> DoctorLine {
    let check = "graphics card";
    let VramDevice { name, driver, memory, shares_memory, checked } = device;
    let kind = if *shares_memory { "of the machine" } else { "of its own" };
    let about = format!("{name} ({driver}), {} of memory {kind}", size(*memory));
    match checked {
        Ok(results) => {
            DoctorLine::ok(check, format!("{about}; all of {results} results have this CPU's bits"))
        }
        // It hurts nobody who does not ask for it.
        Err(why) => DoctorLine::ok(check, format!("{about}; not used by `--vram`: {why}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_with_other_bits_is_told_and_hurts_nobody() {
        let device = |checked| VramDevice {
            name: "Card 1".to_owned(),
            driver: "OpenCL 3.0".to_owned(),
            memory: 8 << 30,
            shares_memory: false,
            checked,
        };
        let good = line(&device(Ok(30_262)));
        assert_eq!((good.hurts, good.remedy), (false, None));
        assert!(good.found.contains("8.00 GiB of memory of its own; all of 30262 results"));
        let bad = line(&device(Err("it computes other bits".to_owned())));
        assert!(!bad.hurts && bad.found.ends_with("not used by `--vram`: it computes other bits"));
        assert!(bad.found.starts_with("Card 1"));
    }
}
