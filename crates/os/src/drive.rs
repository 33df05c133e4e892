//! Temperature and wear of drives, as far as the system has them.

use std::fs::read_to_string;
use std::path::{Path, PathBuf};

/// Most devices below one another: a file system on a volume on an encrypted partition ..
const MOST_LAYERS: usize = 8;

/// Readings of a drive, none where the system does not tell. sysfs has the wear of eMMC and UFS, and that of an NVMe drive nowhere.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DriveReadings {
    /// In thousandths of a degree, as is the limit.
    pub temperature: Option<i64>,
    /// The limit from which the drive warns.
    pub warns_from: Option<i64>,
    /// Percent of the drive's life that is used, at most.
    pub wear: Option<u64>,
}

impl DriveReadings {
    /// The readings of the drive of a directory.
    pub fn of(dir: &Path) -> DriveReadings {
        if let Some(link) = link(dir)
            && let Ok(block) = link.canonicalize()
        {
            return of_device(&block);
        }
        DriveReadings::default()
    }
}

/// The directory of a drive in sysfs.
#[cfg(target_os = "linux")]
fn link(dir: &Path) -> Option<PathBuf> {
    use rustix::fs::{major, minor};

    let device = crate::identity::FileIdentity::at(dir).ok()?.device;
    Some(format!("/sys/dev/block/{}:{}", major(device), minor(device)).into())
}

#[cfg(not(target_os = "linux"))]
fn link(_: &Path) -> Option<PathBuf> {
    None
}

/// The readings of a block device, whose directory in sysfs this is, or of the drives that it is made of:
/// the warmest and the most worn.
fn of_device(block: &Path) -> DriveReadings {
    let mut layer = vec![block.to_owned()];
    for _ in 0..MOST_LAYERS {
        let mut below = Vec::new();
        for device in &layer {
            below.extend(entries(&device.join("slaves")));
        }
        if below.is_empty() {
            break;
        }
        layer = below.into_iter().filter_map(|link| link.canonicalize().ok()).collect();
    }
    let mut all = DriveReadings::default();
    for drive in &layer {
        let one = of_drive(drive);
        if one.temperature > all.temperature {
            all.temperature = one.temperature;
            all.warns_from = one.warns_from;
        }
        all.wear = all.wear.max(one.wear);
    }
    all
}

/// The readings of a drive, or of a partition of it, from the nearest directories above that have them.
fn of_drive(block: &Path) -> DriveReadings {
    let devices = block.ancestors().take(MOST_LAYERS);
    let mut devices = devices.take_while(|dir| *dir != Path::new("/sys/devices"));
    let mut readings = DriveReadings::default();
    if let Some((temperature, sensor)) = devices.clone().find_map(sensor) {
        readings.temperature = Some(temperature);
        readings.warns_from = number(&sensor.join("temp1_max"));
    }
    if let Some(tenths @ 1..=11) = devices.find_map(tenths_of_life) {
        readings.wear = Some(10 * tenths);
    }
    readings
}

/// The temperature of a device, and the directory of its sensor.
fn sensor(device: &Path) -> Option<(i64, PathBuf)> {
    for dir in [device.to_owned(), device.join("hwmon"), device.join("device/hwmon")] {
        for path in entries(&dir) {
            let name = path.file_name().unwrap_or_default();
            if name.as_encoded_bytes().starts_with(b"hwmon")
                && let Some(temperature) = number(&path.join("temp1_input"))
            {
                return Some((temperature, path));
            }
        }
    }
    None
}

/// Tenths of a device's life that are used, the most of all kinds of memory in it.
fn tenths_of_life(device: &Path) -> Option<u64> {
    let tenths = read_to_string(device.join("device/life_time")).ok()?;
    let tenths = tenths.split_whitespace().filter_map(|word| word.strip_prefix("0x"));
    tenths.filter_map(|hex| u64::from_str_radix(hex, 16).ok()).max()
}

fn entries(dir: &Path) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> =
        dir.read_dir().into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    found.sort();
    found
}

fn number(file: &Path) -> Option<i64> {
    read_to_string(file).ok()?.trim().parse().ok()
}

#[cfg(all(test, unix))]
mod tests {
    use std::fs::{create_dir_all, write};

    use super::*;

    fn file(root: &Path, path: &str, text: &str) {
        let path = root.join(path);
        create_dir_all(path.parent().unwrap()).unwrap();
        write(path, text).unwrap();
    }

    #[test]
    fn readings_are_of_the_drive_below_partitions_and_volumes() {
        let temp = tempfile::tempdir().unwrap();
        let root = temp.path();
        for (drive, now) in [("nvme0", "41850\n"), ("nvme1", "83000\n")] {
            file(root, &format!("{drive}/hwmon3/temp1_input"), now);
            file(root, &format!("{drive}/hwmon3/temp1_max"), "82000\n");
            create_dir_all(root.join(format!("{drive}/{drive}n1/{drive}n1p2"))).unwrap();
        }
        let cool = of_device(&root.join("nvme0/nvme0n1/nvme0n1p2"));
        let expected =
            DriveReadings { temperature: Some(41850), warns_from: Some(82000), wear: None };
        assert_eq!(cool, expected);

        let slaves = root.join("dm-0/slaves");
        create_dir_all(&slaves).unwrap();
        for drive in ["nvme0", "nvme1"] {
            let name = format!("{drive}n1p2");
            let partition = root.join(format!("{drive}/{drive}n1/{name}"));
            crate::open::symlink(partition, slaves.join(name)).unwrap();
        }
        let hot = of_device(&root.join("dm-0"));
        assert_eq!(hot.temperature, Some(83000));
    }

    #[test]
    fn wear_is_told_where_the_system_has_it() {
        for (text, wear) in [
            ("0x02 0x01\n", Some(20)),
            ("0x00 0x00\n", None),
            ("0xff\n", None),
            ("0x0b 0x01\n", Some(110)),
            ("many\n", None),
        ] {
            let temp = tempfile::tempdir().unwrap();
            file(temp.path(), "mmcblk0/device/life_time", text);
            assert_eq!(of_device(&temp.path().join("mmcblk0")).wear, wear, "{text}");
        }
        let unknown = of_device(Path::new("/nonesuch"));
        assert_eq!(unknown, DriveReadings::default());
    }
}
