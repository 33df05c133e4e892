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
        link(dir).and_then(|link| Some(of_device(&link.canonicalize().ok()?))).unwrap_or_default()
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
        let below: Vec<PathBuf> =
            layer.iter().flat_map(|device| entries(&device.join("slaves"))).collect();
        if below.is_empty() {
            break;
        }
        layer = below.into_iter().filter_map(|link| link.canonicalize().ok()).collect();
    }
    layer.iter().map(|drive| of_drive(drive)).fold(DriveReadings::default(), |all, one| {
        let warmest = if one.temperature > all.temperature { &one } else { &all };
        let DriveReadings { temperature, warns_from, .. } = *warmest;
        DriveReadings { temperature, warns_from, wear: all.wear.max(one.wear) }
    })
}

/// The readings of a drive, or of a partition of it, from the nearest directories above that have them.
fn of_drive(block: &Path) -> DriveReadings {
    let devices =
        || block.ancestors().take(MOST_LAYERS).take_while(|dir| *dir != Path::new("/sys/devices"));
    let sensors = devices().flat_map(|dir| {
        [dir.to_owned(), dir.join("hwmon"), dir.join("device/hwmon")].into_iter().flat_map(|dir| {
            let of_sensor = |path: &PathBuf| {
                path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"hwmon"))
            };
            entries(&dir).into_iter().filter(of_sensor).collect::<Vec<_>>()
        })
    });
    let mut sensors = sensors.filter_map(|dir| Some((number(&dir.join("temp1_input"))?, dir)));
    let (temperature, sensor) = sensors.next().unzip();
    let wear = devices().find_map(|dir| {
        // Tenths of the life, for each kind of memory.
        let tenths = read_to_string(dir.join("device/life_time")).ok()?;
        let tenths = tenths.split_whitespace().filter_map(|word| word.strip_prefix("0x"));
        tenths.filter_map(|hex| u64::from_str_radix(hex, 16).ok()).max()
    });
    DriveReadings {
        temperature,
        warns_from: sensor.and_then(|dir| number(&dir.join("temp1_max"))),
        wear: wear.filter(|tenths| (1..=11).contains(tenths)).map(|tenths| 10 * tenths),
    }
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
