//! Checks of the disk that a model lies on.

use std::io::{self, ErrorKind};
use std::path::Path;

use sws::Model;
use sws_format::{Clock, Piece, PieceKind};
use sws_os::direct;
use sws_store::{
    PieceLayout, Read, ReaderKind, Reads, SLOT_ALIGN, Slot, StoreOptions, SystemMemory, speeds,
};

use super::DoctorLine;
use crate::commands::size;

/// Bytes per second of disks that are not meant for streaming: hard disks and networks.
const SLOW: f64 = 150e6;
const DEPTHS: [usize; 4] = [1, 2, 4, 8];

pub(super) fn lines(model: &Model) -> Vec<DoctorLine> {
    let mut lines = vec![direct_reads(model)];
    let bytes = read_size(model);
    let mut kinds = Vec::new();
    for depth in DEPTHS {
        kinds.push(Reads { reader: ReaderKind::Direct, depth, huge_pages: true });
    }
    kinds.push(Reads { huge_pages: false, ..four_reads(ReaderKind::Direct) });
    kinds.push(four_reads(ReaderKind::Uring));
    kinds.push(four_reads(ReaderKind::Mmap));
    let found = speeds(model.manifest(), model.dir(), &Clock::real(), bytes, &kinds);
    let (depths, others) = found.split_at(DEPTHS.len());
    lines.push(disk(model, bytes, depths));
    if let Some(speed) = others[0] {
        lines.push(DoctorLine::ok("disk, small pages", with_4_reads(speed)));
    }
    // Runs do without both.
    for (check, kind, speed) in [
        ("reader uring", ReaderKind::Uring, others[1]),
        ("reader mmap", ReaderKind::Mmap, others[2]),
    ] {
        let found = match (speed, kind.open(model.manifest(), model.dir(), 1)) {
            (Some(speed), _) => with_4_reads(speed),
            (None, Err(error)) => format!("{error}; not needed"),
            (None, Ok(_)) => "cannot read the model; not needed".to_owned(),
        };
        lines.push(DoctorLine::ok(check, found));
    }
    lines
}

fn four_reads(reader: ReaderKind) -> Reads {
    Reads { reader, depth: 4, huge_pages: true }
}

fn with_4_reads(speed: f64) -> String {
    format!("{:.2} GB/s with 4 reads in flight", speed / 1e9)
}

/// Bytes per second of each reader that can read a model, with 4 reads in flight.
pub(crate) fn readers(model: &Model) -> Vec<(ReaderKind, f64)> {
    let kinds = ReaderKind::ALL.map(four_reads);
    let bytes = read_size(model);
    let found = speeds(model.manifest(), model.dir(), &Clock::real(), bytes, &kinds);
    let mut readers = Vec::new();
    for (kind, speed) in ReaderKind::ALL.into_iter().zip(found) {
        if let Some(speed) = speed {
            readers.push((kind, speed));
        }
    }
    readers
}

/// Bytes per read while experts stream: the longest run of an expert in a file, or a part of it.
fn read_size(model: &Model) -> usize {
    let whole = StoreOptions::default().chunk;
    let manifest = model.manifest();
    let mut pieces = manifest.pieces.iter();
    let expert = pieces.find(|piece| matches!(piece.id.kind(), PieceKind::Expert(_)));
    let Some(expert) = expert else { return whole };
    let Ok(layout) = PieceLayout::new(manifest, Read::Piece(expert.id)) else { return whole };
    let longest = layout.segments().iter().map(|segment| segment.len).max();
    longest.unwrap_or(whole).min(whole)
}

/// The speed of the default reader at each depth. A slow disk hurts where models are read from it
/// again and again.
fn disk(model: &Model, bytes: usize, speeds: &[Option<f64>]) -> DoctorLine {
    let check = "disk";
    let measured: Option<Vec<f64>> = speeds.iter().copied().collect();
    let Some(measured) = measured else {
        let remedy = "check the disk and the permissions, and `sws verify` the model";
        return DoctorLine::hurts(check, "the model cannot be read", remedy);
    };
    let speeds: Vec<String> = measured.iter().map(|speed| format!("{:.2}", speed / 1e9)).collect();
    let found = format!(
        "{} GB/s with {} reads of {} in flight",
        speeds.join(", "),
        DEPTHS.map(|depth| depth.to_string()).join(", "),
        size(bytes as u64),
    );
    let best = measured.into_iter().fold(0.0, f64::max);
    let weights: u64 = model.manifest().pieces.iter().map(Piece::stored_bytes).sum();
    let streams = matches!(SystemMemory::now(), Some(memory) if memory.available < weights);
    match streams && best < SLOW {
        true => DoctorLine::hurts(check, found, "move the model to an NVMe drive of this machine"),
        false => DoctorLine::ok(check, found),
    }
}

fn direct_reads(model: &Model) -> DoctorLine {
    let Some(file) = model.manifest().files.first() else {
        return DoctorLine::ok("direct reads", "no files");
    };
    of_direct_read(&file.path, read_directly(&model.dir().join(&file.path)))
}

fn of_direct_read(name: &str, outcome: io::Result<()>) -> DoctorLine {
    let check = "direct reads";
    match outcome {
        Ok(()) => DoctorLine::ok(check, "O_DIRECT works"),
        Err(error) if matches!(error.kind(), ErrorKind::InvalidInput | ErrorKind::Unsupported) => {
            DoctorLine::hurts(
                check,
                format!("refused by the file system: {error}"),
                "reads go through the page cache, which counts as memory: move the model to ext4, xfs or btrfs",
            )
        }
        Err(error) => DoctorLine::hurts(
            check,
            format!("`{name}` cannot be read: {error}"),
            "check that it is there and that you may read it; `sws verify` lists all that is missing",
        ),
    }
}

/// A file system may accept the flag and refuse reads.
fn read_directly(path: &Path) -> io::Result<()> {
    let file = direct::open(path, SLOT_ALIGN)?;
    let mut page = Slot::alone(SLOT_ALIGN)?;
    direct::read_at(&file, &mut page, 0).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_refusal_is_of_the_file_system() {
        assert!(!of_direct_read("x", Ok(())).hurts);
        for (kind, refused) in [
            (ErrorKind::InvalidInput, true),
            (ErrorKind::Unsupported, true),
            (ErrorKind::NotFound, false),
            (ErrorKind::PermissionDenied, false),
        ] {
            let line = of_direct_read("x", Err(kind.into()));
            assert!(line.hurts, "{kind}");
            assert_eq!(line.found.contains("file system"), refused, "{line:?}");
        }
    }
}
