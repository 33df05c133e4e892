//! Temperature and wear of the drive that a model lies on.

use std::path::Path;

use sws_os::drive::DriveReadings;

use super::DoctorLine;

const COOLER: &str =
    "the drive slows itself down: cool it, or read less in a second (`--max-disk-rate 1GB`)";

/// Temperature and wear of the drive of a directory.
pub(super) fn lines(dir: &Path) -> [DoctorLine; 2] {
    let readings = DriveReadings::of(dir);
    [temperature(&readings), wear(&readings)]
}

fn temperature(readings: &DriveReadings) -> DoctorLine {
    let check = "drive temperature";
    let Some(now) = readings.temperature else {
        return DoctorLine::ok(check, "not told by this system");
    };
    let found = degrees(now);
    let Some(limit) = readings.warns_from else { return DoctorLine::ok(check, found) };
    let found = format!("{found}, warns from {}", degrees(limit));
    match now >= limit {
        true => DoctorLine::hurts(check, found, COOLER),
        false => DoctorLine::ok(check, found),
    }
}

fn degrees(milli: i64) -> String {
    format!("{} °C", milli / 1000)
}

fn wear(readings: &DriveReadings) -> DoctorLine {
    let check = "drive wear";
    let found = match readings.wear {
        Some(percent) => format!("at most {percent} % of its life used; reading adds none"),
        None => "not told by this system (`nvme smart-log` as root); reading adds none".to_owned(),
    };
    DoctorLine::ok(check, found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_warm_drive_hurts_and_an_unknown_one_does_not() {
        let of =
            |now| DriveReadings { temperature: Some(now), warns_from: Some(82_000), wear: None };
        let cool = temperature(&of(41_850));
        assert!(!cool.hurts);
        assert_eq!(cool.found, "41 °C, warns from 82 °C");
        let hot = temperature(&of(83_000));
        assert!(hot.remedy.unwrap().contains("--max-disk-rate"));
        assert!(wear(&DriveReadings::default()).found.contains("not told"));
    }
}
