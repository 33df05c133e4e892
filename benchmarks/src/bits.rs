//! Bits of a weight in the lossless encodings of bf16 and of fp8: of experts as they were trained, and of
//! rows with known distributions.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use half::bf16;
use sws_format::{Extent, Manifest, PieceKind};
use sws_kernels::{Encoding, Fp8Scales};
use sws_shard::{ShardOptions, unshard};

use crate::gaussian::{mix, quantile, stream};
use crate::kernels::weights::Encoded;
use crate::large::make_shards;

/// Encodings in the order of columns.
const ENCODINGS: [Encoding; 4] =
    [Encoding::Bf12, Encoding::Bf11, Encoding::Nested, Encoding::Fp7(Fp8Scales::Squares)];

/// Bits of a weight in each.
type Bits = [f64; ENCODINGS.len()];

/// Synthetic rows: name, columns, and the standard deviation of the logarithm of a row's scale.
const ROWS: [(&str, usize, f32); 6] = [
    ("Gaussian", 2048, 0.0),
    ("Gaussian", 768, 0.0),
    ("Gaussian", 192, 0.0),
    ("Gaussian", 96, 0.0),
    ("Gaussian, scales log-normal .15", 2048, 0.15),
    ("Gaussian, scales log-normal .4", 2048, 0.4),
];

/// Weights of a synthetic matrix.
const WEIGHTS: usize = 1 << 22;

/// Arguments of the command.
#[derive(clap::Args)]
pub struct BitsArguments {
    /// Shards or bf16 checkpoints whose experts are encoded
    models: Vec<PathBuf>,
    /// New directory for their shards, deleted afterwards
    #[arg(long, value_name = "DIR")]
    scratch: Option<PathBuf>,
}

/// Returns the table.
pub fn table(arguments: &BitsArguments) -> Result<String> {
    ensure!(arguments.models.is_empty() || arguments.scratch.is_some(), "models need --scratch");
    let mut table =
        "| weights | columns | bf12 | bf11 | bf11 / bf12 | nested | fp7 |\n|---|---:|---:|---:|---:|---:|---:|\n"
            .to_owned();
    let mut line = |name: &str, cols: &str, [bf12, bf11, nested, fp7]: Bits| {
        writeln!(
            table,
            "| {name} | {cols} | {bf12:.3} | {bf11:.3} | {:.3} | {nested:.3} | {fp7:.3} |",
            bf11 / bf12
        )
    };
    for (name, cols, spread) in ROWS {
        let weights = rows(cols, spread);
        let shape = (weights.len() / 2 / cols, cols);
        let mut bits = Bits::default();
        for (bits, encoding) in bits.iter_mut().zip(ENCODINGS) {
            let bytes = Encoded::new(encoding, shape, &weights)?.matrix()?.bytes();
            *bits = bytes as f64 * 16.0 / weights.len() as f64;
        }
        line(name, &cols.to_string(), bits)?;
    }
    if let Some(scratch) = &arguments.scratch {
        std::fs::create_dir(scratch).with_context(|| format!("`{}`", scratch.display()))?;
        let done = arguments.models.iter().try_for_each(|model| {
            for (cols, bits) in experts(model, scratch)? {
                line(&format!("experts of {}", model.display()), &cols.to_string(), bits)?;
            }
            Ok(())
        });
        std::fs::remove_dir_all(scratch)?;
        done.map(|()| table)
    } else {
        Ok(table)
    }
}

/// Gaussian bf16 weights, each row with a scale of its own.
fn rows(cols: usize, spread: f32) -> Vec<u8> {
    let weights = stream(0, "weights");
    let scales = stream(0, "scales");
    let mut rows = Vec::with_capacity(2 * WEIGHTS);
    for i in 0..WEIGHTS / cols * cols {
        let scale = (spread * normal(scales, (i / cols) as u64)).exp();
        rows.extend(bf16::from_f32(0.02 * scale * normal(weights, i as u64)).to_le_bytes());
    }
    rows
}

/// Number `i` of a stream of Gaussian ones.
fn normal(key: u64, i: u64) -> f32 {
    quantile((mix(key, i) >> 40) as f32 / (1u64 << 24) as f32)
}

/// Bits of a weight of all experts, by columns of their matrices, and all together.
fn experts(model: &Path, scratch: &Path) -> Result<BTreeMap<String, Bits>> {
    let is_sharded = Manifest::load(model).is_ok_and(|manifest| manifest.encoding.is_some());
    let checkpoint = if is_sharded {
        let checkpoint = scratch.join("checkpoint");
        unshard(model, &checkpoint, false, None, &|_| ())?;
        checkpoint
    } else {
        model.to_owned()
    };
    let mut found = BTreeMap::new();
    for (index, encoding) in ENCODINGS.into_iter().enumerate() {
        let out = scratch.join(encoding.name());
        // fp7 is made of fp8, which no such checkpoint has: that is made of bf16 here.
        let sharded = if matches!(encoding, Encoding::Fp7(_)) { Encoding::Bf16 } else { encoding };
        let options = ShardOptions { encoding: sharded, ..ShardOptions::default() };
        make_shards(&checkpoint, &out, &options)?;
        let manifest = Manifest::load(&out)?;
        let experts = manifest.pieces.iter().filter(|piece| {
            matches!(piece.id.kind(), PieceKind::Expert(_)) && piece.stand_in.is_none()
        });
        let mut sums: BTreeMap<String, [u64; 2]> = BTreeMap::new();
        for tensor in experts.flat_map(|piece| &piece.tensors) {
            let (rows, cols) = tensor.matrix_shape();
            let bytes = match encoding == sharded {
                true => tensor.parts.iter().map(|part| part.len).sum(),
                false => {
                    let weights = read(&out, &manifest, &tensor.parts[0])?;
                    let shape = (rows as usize, cols as usize);
                    Encoded::new(encoding, shape, &weights)?.matrix()?.bytes() as u64
                }
            };
            for key in [cols.to_string(), "all".to_owned()] {
                let [sum, count] = sums.entry(key).or_default();
                *sum += bytes;
                *count += rows * cols;
            }
        }
        for (cols, [bytes, count]) in sums {
            let bits: &mut Bits = found.entry(cols).or_default();
            bits[index] = bytes as f64 * 8.0 / count as f64;
        }
    }
    for name in ENCODINGS.map(Encoding::name).into_iter().chain(is_sharded.then_some("checkpoint"))
    {
        std::fs::remove_dir_all(scratch.join(name))?;
    }
    Ok(found)
}

/// The bytes of a part of shards.
fn read(shards: &Path, manifest: &Manifest, part: &Extent) -> Result<Vec<u8>> {
    let file = File::open(shards.join(&manifest.files[part.file as usize].path))?;
    let mut bytes = vec![0; usize::try_from(part.len)?];
    file.read_exact_at(&mut bytes, part.offset)?;
    Ok(bytes)
}
