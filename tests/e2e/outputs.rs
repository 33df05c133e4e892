//! Outputs: through links to their targets, into pipes and devices, and never replacing either.

use std::os::unix::fs::{FileTypeExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::goldens::golden_dir;
use crate::sws::{Outcome, command, sws, tree};

const MODEL: &str = "qwen3_moe";

fn forward(out: &Path) -> Outcome {
    sws(&[&"forward", &golden_dir(MODEL), &"--tokens", &"1,2,3", &"--out", &out])
}

/// The bytes that `forward` writes to an ordinary file.
fn expected(dir: &Path) -> Vec<u8> {
    let plain = dir.join("plain");
    forward(&plain).succeeded();
    std::fs::read(plain).unwrap()
}

#[test]
fn outputs_go_through_links_and_leave_them_links() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path();
    let expected = expected(dir);
    std::fs::create_dir(dir.join("elsewhere")).unwrap();
    std::fs::write(dir.join("elsewhere/real"), b"before").unwrap();
    let links = [
        ("link", "elsewhere/real"),
        ("second", "link"),
        ("dangling", "elsewhere/new"),
        ("absolute", dir.join("elsewhere/real").to_str().unwrap()),
    ]
    .map(|(name, to)| (name, to.to_owned()));
    for (name, to) in &links {
        symlink(to, dir.join(name)).unwrap();
    }
    for (name, to) in &links {
        forward(&dir.join(name)).succeeded();
        assert_eq!(std::fs::read_link(dir.join(name)).unwrap(), Path::new(to), "{name}");
        assert!(std::fs::read(dir.join(name)).unwrap() == expected, "{name}");
    }
    let names: Vec<_> = tree(&dir.join("elsewhere")).into_keys().collect();
    assert_eq!(names, [Path::new("new"), Path::new("real")]);

    symlink("round", dir.join("round")).unwrap();
    forward(&dir.join("round")).refused(2, &["round", "cannot be written"]);
}

#[test]
fn pipes_and_devices_are_written_to_and_stay() {
    let temp = tempfile::tempdir().unwrap();
    let expected = expected(temp.path());
    let pipe = temp.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    forward(&pipe).refused(2, &["nothing reads", "start its reader"]);
    // A handle open for both directions keeps the pipe alive before and after the writer.
    let reader = Command::new("cat").stdin(both(&pipe)).stdout(Stdio::piped()).spawn().unwrap();
    forward(&pipe).succeeded();
    assert!(std::fs::metadata(&pipe).unwrap().file_type().is_fifo());
    assert!(read(reader, expected.len()) == expected);

    forward(Path::new("/dev/null")).succeeded();
    assert!(std::fs::metadata("/dev/null").unwrap().file_type().is_char_device());
}

fn both(pipe: &Path) -> std::fs::File {
    std::fs::File::options().read(true).write(true).open(pipe).unwrap()
}

/// Reads `len` bytes of a child's output, then kills the child.
fn read(mut child: std::process::Child, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    std::io::Read::read_exact(&mut child.stdout.take().unwrap(), &mut bytes).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    bytes
}

#[test]
fn standard_output_gets_the_output_and_nothing_else() {
    let temp = tempfile::tempdir().unwrap();
    let expected = expected(temp.path());
    let file = temp.path().join("file");
    let model = golden_dir(MODEL);
    let before = std::fs::read_link("/dev/stdout").unwrap();
    let args: [&dyn AsRef<std::ffi::OsStr>; 6] =
        [&"forward", &model, &"--tokens", &"1,2,3", &"--out", &"/dev/stdout"];
    // After earlier output of a shell, into a truncated file, and through a pipe.
    for begun in [&b"begun\n"[..], b""] {
        let mut stdout = std::fs::File::create(&file).unwrap();
        std::io::Write::write_all(&mut stdout, begun).unwrap();
        let done = command(&args).stdout(stdout).output().unwrap();
        assert!(done.status.success(), "{done:?}");
        assert!(std::fs::read(&file).unwrap() == [begun, &expected].concat());
    }
    assert!(command(&args).output().unwrap().stdout == expected);
    assert_eq!(std::fs::read_link("/dev/stdout").unwrap(), before);
    let run: [&dyn AsRef<std::ffi::OsStr>; 7] =
        [&"run", &model, &"--tokens", &"1,2", &"--json", &"--certify", &"/dev/stdout"];
    sws(&run).refused(2, &["/dev/stdout", "holds the answer"]);
}

#[test]
fn files_of_the_system_and_directories_are_refused() {
    let temp = tempfile::tempdir().unwrap();
    let cases = [
        ("/proc/version", "file of the system"),
        ("/dev/sws-no-such-device", "among the system's devices"),
        ("/proc/sws-no-such-file", "among the system's devices"),
        (temp.path().to_str().unwrap(), "is a directory"),
        ("/", "is a directory"),
        ("no-such-directory-of-sws/", "name of a directory"),
    ];
    for (out, words) in cases {
        forward(Path::new(out)).refused(2, &[out, words]);
    }
    assert!(!Path::new("/dev/sws-no-such-device").exists());
    let socket = temp.path().join("socket");
    let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    forward(&socket).refused(2, &["not a regular file"]);
}

#[test]
fn two_outputs_of_one_name_are_refused() {
    let temp = tempfile::tempdir().unwrap();
    let file = temp.path().join("file");
    let link = temp.path().join("link");
    symlink("file", &link).unwrap();
    let model = golden_dir(MODEL);
    let outcome = sws(&[
        &"run",
        &model,
        &"--tokens",
        &"1,2",
        &"--json",
        &"--record",
        &file,
        &"--certify",
        &link,
    ]);
    outcome.refused(2, &["--record and --certify", "name two"]);
    assert_eq!(temp.path().read_dir().unwrap().count(), 1, "only the link is there");
}

#[test]
fn inputs_are_never_replaced() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path();
    let model = dir.join("model");
    copied(&golden_dir(MODEL), &model);
    let recording = dir.join("recording");
    let run = |words: &[&dyn AsRef<std::ffi::OsStr>]| {
        let mut args: Vec<&dyn AsRef<std::ffi::OsStr>> =
            vec![&"run", &model, &"--tokens", &"1,2,3", &"-n", &"4", &"--json", &"--no-warm-start"];
        args.extend(words);
        sws(&args)
    };
    run(&[&"--record", &recording]).succeeded();
    let before = tree(dir);
    let config = model.join("config.json");
    for refused in [
        run(&[&"--report", &config]),
        run(&[&"--record", &config]),
        run(&[&"--certify", &config]),
        sws(&[&"replay", &recording, &"--html", &recording]),
        sws(&[&"forward", &model, &"--tokens", &"1,2,3", &"--out", &config]),
    ] {
        refused.refused(2, &["is an input of this command", "name another file"]);
    }
    assert!(tree(dir) == before);
}

pub(crate) fn copied(from: &Path, to: &Path) {
    for (name, bytes) in tree(from) {
        let path = to.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
    }
}
