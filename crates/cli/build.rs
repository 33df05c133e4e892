//! Tells the program the commit that it is built from: `SWS_COMMIT`, or else what git says. Gives it
//! the bundled model, with the feature `tale`.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    if std::env::var_os("CARGO_FEATURE_TALE").is_some() {
        // Asked now, as a target directory may outlive the clone in which this was compiled.
        let root = std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default();
        let source = PathBuf::from(root).join("../../shards/tales-moe");
        println!("cargo:rerun-if-changed={}", source.display());
        if let Err(e) = pack(&source) {
            panic!(
                "`{}` cannot be read ({e}); leave out the feature `tale`, as docs/install.md says",
                source.display()
            );
        }
    }
    println!("cargo:rerun-if-env-changed=SWS_COMMIT");
    let commit = std::env::var("SWS_COMMIT").ok().or_else(|| {
        let git = |words: &[&str]| {
            let output = Command::new("git").args(words).output().ok()?;
            let text = String::from_utf8(output.stdout).ok()?;
            Some(text.trim().to_owned()).filter(|text| output.status.success() && !text.is_empty())
        };
        // Written at each commit, and when another one is checked out.
        let log = git(&["rev-parse", "--path-format=absolute", "--git-path", "logs/HEAD"])?;
        println!("cargo:rerun-if-changed={log}");
        git(&["rev-parse", "--short=9", "HEAD"])
    });
    println!("cargo:rustc-env=SWS_COMMIT={}", commit.unwrap_or_default());
}

/// Joins the files of a directory to one, beside an index of their lengths and paths.
fn pack(source: &Path) -> io::Result<()> {
    let out = PathBuf::from(std::env::var_os("OUT_DIR").ok_or(io::ErrorKind::NotFound)?);
    let mut paths = Vec::new();
    list(source, &mut paths)?;
    paths.sort();
    let mut packed = io::BufWriter::new(fs::File::create(out.join("tale"))?);
    let mut index = String::new();
    // FNV-1a: tells versions of the model apart.
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for path in paths {
        let bytes = fs::read(&path)?;
        packed.write_all(&bytes)?;
        let name = path.strip_prefix(source).map_err(io::Error::other)?;
        index += &format!("{} {}\n", bytes.len(), name.display());
        for byte in bytes {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
    packed.flush()?;
    fs::write(out.join("tale.index"), index)?;
    println!("cargo:rustc-env=SWS_TALE=tales-moe-{hash:016x}");
    Ok(())
}

fn list(dir: &Path, paths: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        match path.is_dir() {
            true => list(&path, paths)?,
            false => paths.push(path),
        }
    }
    Ok(())
}
