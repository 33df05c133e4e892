//! The figures of docs/evidence.md, drawn from the results in `benchmarks/results`.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

mod draw;
mod figures;
mod results;

/// The committed results.
pub fn results() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("results")
}

/// The committed figures.
pub fn figures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/figures")
}

/// Name and text of each figure, from the results in `dir`.
pub fn draw(dir: &Path) -> Result<Vec<(&'static str, String)>> {
    let figures = [
        ("speed.svg", figures::speed(dir)),
        ("reads.svg", figures::reads(dir)),
        ("token.svg", figures::token(dir)),
        ("prefetch.svg", figures::prefetch(dir)),
        ("kernels.svg", figures::kernels(dir)),
        ("plan.svg", figures::plan(dir)),
    ];
    let mut drawn = Vec::new();
    for (name, figure) in figures {
        let figure = figure.with_context(|| format!("drawing `{name}`"))?;
        drawn.push((name, draw::svg(&figure).with_context(|| format!("drawing `{name}`"))?));
    }
    Ok(drawn)
}

/// Writes all figures into `out`.
pub fn write(dir: &Path, out: &Path) -> Result<()> {
    std::fs::create_dir_all(out).with_context(|| format!("creating `{}`", out.display()))?;
    for (name, svg) in draw(dir)? {
        let path = out.join(name);
        std::fs::write(&path, svg).with_context(|| format!("writing `{}`", path.display()))?;
    }
    Ok(())
}
