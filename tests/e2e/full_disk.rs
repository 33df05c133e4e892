//! A disk that becomes full midway: one sentence, no partial file, and the job can be resumed. And
//! a disk that refuses direct transfers: the same bytes.

use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use safetensors::Dtype;

use crate::checkpoints::{Checkpoint, Random, tiny};
use crate::sws::{assert_same_tree, sws, tree};

/// A small file system of its own. Needs root.
pub(crate) struct Disk(pub(crate) PathBuf);

impl Disk {
    pub(crate) fn mount(path: &Path, kib: u64) -> Option<Disk> {
        Disk::of_type("tmpfs", path, kib)
    }

    fn of_type(kind: &str, path: &Path, kib: u64) -> Option<Disk> {
        std::fs::create_dir(path).unwrap();
        let options = format!("size={kib}k");
        let mut mount = Command::new("mount");
        mount.args(["-t", kind, "-o", &options, "sws-test"]).arg(path);
        match mount.output() {
            Ok(output) if output.status.success() => Some(Disk(path.to_owned())),
            _ => {
                eprintln!("skipped: only root may mount the small disk this test needs");
                None
            }
        }
    }

    fn grow(&self, kib: u64) {
        let options = format!("remount,size={kib}k");
        let status = Command::new("mount").args(["-o", &options]).arg(&self.0).status().unwrap();
        assert!(status.success());
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

#[test]
fn a_full_disk_is_refused_at_the_start() {
    let temp = tempfile::tempdir().unwrap();
    let Some(disk) = Disk::mount(&temp.path().join("disk"), 256) else { return };
    let dir = temp.path().join("in");
    tiny("mixtral", Dtype::BF16, 1).write(&dir, 1);
    let out = disk.0.join("out");
    sws(&[&"shard", &dir, &"--out", &out]).refused(2, &["out", "free", "make room"]);
    assert!(!out.exists());
}

#[test]
fn sharding_resumes_after_a_full_disk() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("in");
    let whole = temp.path().join("whole");
    // Random bits do not fit bf12, so the shards need more room than was estimated.
    let mut model = tiny("mixtral", Dtype::BF16, 1);
    for tensor in model.tensors.values_mut() {
        Random(9).fill(&mut tensor.bytes);
    }
    model.write(&dir, 1);
    sws(&[&"shard", &dir, &"--out", &whole]).succeeded();
    let bytes: u64 = tree(&whole).values().map(|bytes| bytes.len() as u64).sum();
    // The estimate is three quarters of the weights.
    let Some(disk) = Disk::mount(&temp.path().join("disk"), bytes / 1024 * 17 / 20) else { return };
    let out = disk.0.join("out");
    sws(&[&"shard", &dir, &"--out", &out]).refused(2, &["disk is full", "goes on"]);
    let left = tree(&out);
    assert!(!left.contains_key(Path::new("manifest.json")));
    let mut complete = 0;
    for (name, bytes) in &left {
        let text = name.to_string_lossy();
        assert!(!text.ends_with(".sws-tmp"), "{text} was left behind");
        if !text.ends_with(".sws-journal") {
            assert!(*bytes == std::fs::read(whole.join(name)).unwrap(), "{text} is partial");
            complete += 1;
        }
    }
    assert!(complete > 3, "only {complete} shards were made before the disk was full");
    disk.grow(bytes / 1024 * 2);
    let done = sws(&[&"shard", &dir, &"--out", &out]).succeeded();
    assert!(done.stdout.contains("there before"), "{done:?}");
    assert_same_tree(&whole, &out);
}

/// True if files in this directory can be opened for direct transfers.
fn takes_direct(dir: &Path) -> bool {
    const O_DIRECT: i32 = if cfg!(target_arch = "aarch64") { 0o200_000 } else { 0o40_000 };
    let path = dir.join("probe");
    let mut options = std::fs::File::options();
    let opened = options.write(true).create(true).truncate(true).custom_flags(O_DIRECT).open(&path);
    let _ = std::fs::remove_file(&path);
    opened.is_ok()
}

#[test]
fn same_bytes_without_direct_transfers() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("in");
    let whole = temp.path().join("whole");
    let model = tiny("mixtral", Dtype::BF16, 3);
    model.write(&dir, 2);
    sws(&[&"shard", &dir, &"--out", &whole]).succeeded();
    // Newer kernels support direct transfers on tmpfs, but none supports them on ramfs.
    let Some(disk) = Disk::of_type("ramfs", &temp.path().join("disk"), 64 << 10) else { return };
    if takes_direct(&disk.0) {
        eprintln!("skipped: this system has no file system that refuses direct transfers");
        return;
    }
    let there = disk.0.join("in");
    let out = disk.0.join("out");
    let back = disk.0.join("back");
    model.write(&there, 2);
    sws(&[&"shard", &there, &"--out", &out]).succeeded();
    assert_same_tree(&whole, &out);
    sws(&[&"verify", &out]).succeeded();
    sws(&[&"unshard", &out, &"--out", &back]).succeeded();
    assert!(Checkpoint::read_tensors(&back) == model.tensors);
}
