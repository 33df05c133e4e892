use std::path::Path;

use sws_format::Clock;
use sws_store::{ReaderKind, Reads, probe, speeds};

use crate::support::{MIB, Model};

#[test]
fn probe_chooses_a_measured_reader() {
    let model = Model::experts(3, 2 * MIB + 4096);
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    model.write(dir.path());
    let report = probe(&model.manifest, dir.path(), &Clock::real(), None);
    assert!(!report.figures.is_empty());
    let chosen = |f: &&sws_store::Figure| (f.reader, f.depth) == (report.reader, report.depth);
    assert!(report.figures.iter().any(|figure| chosen(&figure)));
    let only = probe(&model.manifest, dir.path(), &Clock::real(), Some(ReaderKind::Direct));
    assert!(only.figures.iter().all(|figure| figure.reader == ReaderKind::Direct));
}

#[test]
fn speeds_are_those_of_the_kinds_asked_for() {
    let model = Model::experts(3, 2 * MIB + 4096);
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    model.write(dir.path());
    let kinds = [(1, true), (4, true), (4, false)].map(|(depth, huge_pages)| Reads {
        reader: ReaderKind::Direct,
        depth,
        huge_pages,
    });
    for bytes in [0, 5000, MIB] {
        let found = speeds(&model.manifest, dir.path(), &Clock::real(), bytes, &kinds);
        assert!(found.len() == 3 && found.iter().all(|speed| speed.is_some_and(|s| s > 0.0)));
        let nowhere = speeds(&model.manifest, Path::new("/nowhere"), &Clock::real(), bytes, &kinds);
        assert_eq!(nowhere, [None; 3]);
    }
}

#[test]
fn probe_without_files_returns_defaults() {
    let nowhere = Path::new("/nowhere");
    for model in [Model::new(vec![]), Model::new(vec![vec![]]), Model::experts(2, MIB)] {
        let report = probe(&model.manifest, nowhere, &Clock::real(), None);
        assert_eq!((report.reader, report.depth), (ReaderKind::Direct, 4));
        assert!(report.figures.is_empty());
        let report = probe(&model.manifest, nowhere, &Clock::real(), Some(ReaderKind::Mmap));
        assert_eq!(report.reader, ReaderKind::Mmap);
    }
}
