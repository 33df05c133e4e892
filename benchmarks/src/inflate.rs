//! Enlarges the experts of a trained checkpoint without changing their function.
//!
//! An expert is `down · (silu(gate · x) * (up · x))`. A further inner neuron, a row of gate, a row
//! of up and a column of down, adds nothing when its column of down is zero. So the model's
//! function, its routing included, stays the trained one, while its experts take as long to read as
//! those of a large model.
//!
//! The trained neurons are scattered over the whole width, one by one, but neuron `j` keeps its
//! index modulo 32 and its order among the neurons that share it. A reduction over 32 fixed lanes
//! therefore adds the same terms in the same order, with zeros between them, and the result keeps
//! even its rounding.
//!
//! Stand-ins in q4 or q8 have a scale for 64 columns. Among zeros a scattered column has one to itself,
//! and its stand-in is better than that of the trained expert. Neurons are therefore moved
//! [by groups of 64](Neurons::ByGroup) where stand-ins matter: each group keeps its scales, and the
//! stand-ins of the enlarged model are those of the trained one.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use half::bf16;
use rayon::prelude::*;
use safetensors::Dtype;
use serde_json::Value;

use crate::checkpoint::{Output, PlannedTensor, Source, SourceTensor};
use crate::gaussian::{Gaussian, mix, stream};

/// Trained neurons keep their index modulo this number.
const LANES: usize = 32;
/// Trained neurons that share a scale in a stand-in.
const GROUP: usize = 64;
/// Step of the inner width, which keeps files aligned.
const WIDTH_STEP: u64 = 64;

/// Families whose experts are three separate matrices, and the config's name for the inner width of
/// an expert. In other families that key covers other matrices too.
const FAMILIES: [(&str, &str); 4] = [
    ("mixtral", "intermediate_size"),
    ("olmoe", "intermediate_size"),
    ("qwen2_moe", "moe_intermediate_size"),
    ("qwen3_moe", "moe_intermediate_size"),
];

/// What trained neurons are moved by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Neurons {
    /// Each has its own place, among zeros.
    Scattered,
    /// Those that share scales in a stand-in stay together.
    ByGroup,
}

/// Writes `checkpoint` with experts of at least `expert_bytes` into the new directory `out`.
///
/// The inner width is the smallest multiple of 64 that reaches the size. All other tensors are
/// copied. Files hold at most `file_bytes`.
pub fn inflate(
    checkpoint: &Path,
    expert_bytes: u64,
    out: &Path,
    file_bytes: u64,
    (seed, neurons): (u64, Neurons),
) -> Result<()> {
    let source = Source::open(checkpoint)?;
    let plan = Plan::new(&source, checkpoint, expert_bytes)?;
    let output = Output::create(out)?;
    output.file("config.json", &serde_json::to_vec_pretty(&plan.config)?)?;
    copy_companions(checkpoint, &output)?;
    let mut filler = Filler { source: &source, plan: &plan, seed, neurons, current: None };
    output.tensors("inflate", &plan.tensors, file_bytes, |index, offset, chunk| {
        filler.fill(index, offset, chunk)
    })?;
    output.finish()
}

/// New index of each of `trained` neurons within `width`, as described at the head of the module.
///
/// Each run of 32 neurons, or group of 64, has its own stretch of the new width, and each neuron, or
/// group, its own place in it.
pub fn positions(trained: usize, width: usize, key: u64, neurons: Neurons) -> Vec<usize> {
    let len = match neurons {
        Neurons::Scattered => LANES,
        Neurons::ByGroup => GROUP,
    };
    let runs = trained.div_ceil(len);
    let blocks = width / len;
    (0..trained)
        .map(|j| {
            let run = j / len;
            let from = run * blocks / runs;
            let to = (run + 1) * blocks / runs;
            let alike = match neurons {
                Neurons::Scattered => j,
                Neurons::ByGroup => run,
            };
            let block = from + mix(key, alike as u64) as usize % (to - from);
            block * len + j % len
        })
        .collect()
}

struct Plan {
    config: Value,
    tensors: Vec<PlannedTensor>,
    /// Role of each tensor; `None` for tensors that are not of experts.
    roles: Vec<Option<Role>>,
    hidden: usize,
    trained: usize,
    width: usize,
}

struct Role {
    /// Name of the expert. All tensors of an expert scatter their neurons alike.
    expert: String,
    part: Part,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    GateOrUp,
    Down,
}

impl Plan {
    fn new(source: &Source, dir: &Path, expert_bytes: u64) -> Result<Self> {
        let dir = dir.display();
        let mut config = source.config.clone();
        let family = config.get("model_type").and_then(Value::as_str).unwrap_or("").to_owned();
        let Some((_, width_key)) = FAMILIES.iter().find(|(name, _)| *name == family) else {
            let known = FAMILIES.map(|(name, _)| name).join(", ");
            bail!(
                "`{dir}` is of model_type `{family}`, and inflate knows the experts of {known}; \
                 name a checkpoint of one of these"
            );
        };
        let trained = number(&config, width_key, &dir)?;
        let hidden = number(&config, "hidden_size", &dir)?;
        let neuron = 3 * 2 * hidden as u64;
        ensure!(
            expert_bytes <= 1 << 40,
            "an expert of {expert_bytes} bytes is beyond reason; ask for at most 1 TiB"
        );
        let width = expert_bytes.div_ceil(neuron).next_multiple_of(WIDTH_STEP) as usize;
        ensure!(
            width >= trained && expert_bytes >= neuron * trained as u64,
            "the experts of `{dir}` take {} bytes already; ask for more --expert-bytes",
            neuron * trained as u64
        );

        let mut plan =
            Plan { config: Value::Null, tensors: vec![], roles: vec![], hidden, trained, width };
        let mut parts = BTreeMap::new();
        for tensor in &source.tensors {
            let role = role(&tensor.name);
            let mut planned = PlannedTensor {
                name: tensor.name.clone(),
                dtype: tensor.dtype,
                shape: tensor.shape.clone(),
                below: 0,
            };
            if let Some(role) = &role {
                planned.shape = plan.inflated(tensor, role.part)?;
                *parts.entry(role.expert.clone()).or_insert(0) += 1;
            }
            plan.tensors.push(planned);
            plan.roles.push(role);
        }
        ensure!(!parts.is_empty(), "`{dir}` holds no expert tensors; name an MoE checkpoint");
        if let Some((expert, n)) = parts.iter().find(|&(_, &n)| n != 3) {
            bail!("`{dir}` holds {n} of the 3 matrices of `{expert}`; download it again");
        }
        config[*width_key] = width.into();
        plan.config = config;
        Ok(plan)
    }

    fn inflated(&self, tensor: &SourceTensor, part: Part) -> Result<Vec<usize>> {
        let expected = |inner| match part {
            Part::GateOrUp => vec![inner, self.hidden],
            Part::Down => vec![self.hidden, inner],
        };
        ensure!(
            tensor.dtype == Dtype::BF16,
            "`{}` is stored as {}; inflate takes bf16 checkpoints",
            tensor.name,
            tensor.dtype
        );
        ensure!(
            tensor.shape == expected(self.trained),
            "`{}` is of shape {:?} where its config says {:?}; download it again",
            tensor.name,
            tensor.shape,
            expected(self.trained)
        );
        Ok(expected(self.width))
    }
}

fn number(config: &Value, key: &str, dir: &dyn std::fmt::Display) -> Result<usize> {
    let value = config.get(key).and_then(Value::as_u64).filter(|n| (1..1 << 24).contains(n));
    let value = value.with_context(|| {
        format!("`{key}` in the config.json of `{dir}` is missing or absurd; download it again")
    })?;
    Ok(value as usize)
}

/// Parses names like `….experts.7.gate_proj.weight`.
fn role(name: &str) -> Option<Role> {
    let (expert, matrix) = name.strip_suffix(".weight")?.rsplit_once('.')?;
    let part = match matrix {
        "w1" | "w3" | "gate_proj" | "up_proj" => Part::GateOrUp,
        "w2" | "down_proj" => Part::Down,
        _ => return None,
    };
    let (rest, number) = expert.rsplit_once('.')?;
    let routed = rest.ends_with(".experts") && number.parse::<u32>().is_ok();
    routed.then(|| Role { expert: expert.to_owned(), part })
}

/// Copies tokenizer, chat template and generation config: all but the weights and the files that
/// are rewritten.
fn copy_companions(checkpoint: &Path, output: &Output) -> Result<()> {
    let told = || format!("cannot list `{}`", checkpoint.display());
    for entry in checkpoint.read_dir().with_context(told)? {
        let path = entry.with_context(told)?.path();
        let name = path.file_name().and_then(|n| n.to_str()).unwrap_or("");
        let weights = ["safetensors", "bin", "pt", "pth", "gguf", "h5", "msgpack", "onnx"];
        let is_weights = path.extension().is_some_and(|e| weights.iter().any(|w| e == *w));
        let anew = name == "config.json" || name.ends_with(".index.json");
        if path.is_file() && !is_weights && !anew {
            output.copy(&path)?;
        }
    }
    Ok(())
}

struct Filler<'a> {
    source: &'a Source,
    plan: &'a Plan,
    seed: u64,
    neurons: Neurons,
    current: Option<(usize, Scattered)>,
}

/// Random choices for one tensor.
struct Scattered {
    /// New index of each trained neuron.
    positions: Vec<usize>,
    /// Trained neuron at each new index, if there is one.
    trained: Vec<Option<usize>>,
    key: u64,
    random: Gaussian,
}

impl Filler<'_> {
    fn fill(&mut self, index: usize, offset: u64, chunk: &mut [u8]) -> Result<()> {
        let tensor = &self.source.tensors[index];
        let Some(role) = &self.plan.roles[index] else {
            return self.source.read_at(tensor, offset, chunk);
        };
        if self.current.as_ref().is_none_or(|(i, _)| *i != index) {
            self.current = Some((index, self.scatter(tensor, role)?));
        }
        let (_, scattered) = self.current.as_ref().expect("set above");
        match role.part {
            Part::GateOrUp => self.fill_rows(tensor, scattered, offset, chunk),
            Part::Down => self.fill_columns(tensor, scattered, offset, chunk),
        }
    }

    fn scatter(&self, tensor: &SourceTensor, role: &Role) -> Result<Scattered> {
        let Plan { trained, width, .. } = *self.plan;
        let positions = positions(trained, width, stream(self.seed, &role.expert), self.neurons);
        let mut inverse = vec![None; width];
        for (neuron, &position) in positions.iter().enumerate() {
            inverse[position] = Some(neuron);
        }
        let std = match role.part {
            Part::GateOrUp => self.root_mean_square(tensor)?,
            Part::Down => 0.0,
        };
        let random = Gaussian::new(0.0, std);
        // Not the bare name: a random checkpoint draws its own rows from that stream.
        let key = stream(self.seed, &format!("inflate {}", tensor.name));
        Ok(Scattered { positions, trained: inverse, key, random })
    }

    /// Root mean square of the trained weights, which becomes the scale of the random ones.
    fn root_mean_square(&self, tensor: &SourceTensor) -> Result<f32> {
        let mut buffer = vec![0u8; (1 << 20).min(tensor.bytes as usize)];
        let mut sum = 0f64;
        let mut offset = 0;
        while offset < tensor.bytes {
            let len = buffer.len().min((tensor.bytes - offset) as usize);
            self.source.read_at(tensor, offset, &mut buffer[..len])?;
            for bytes in buffer[..len].as_chunks::<2>().0 {
                sum += f64::from(bf16::from_le_bytes(*bytes)).powi(2);
            }
            offset += len as u64;
        }
        let scale = (sum / (tensor.bytes / 2) as f64).sqrt() as f32;
        ensure!(
            scale.is_finite(),
            "`{}` holds infinities or NaNs; name a checkpoint of finite weights",
            tensor.name
        );
        Ok(scale)
    }

    /// Fills rows of gate or up: trained rows at the places of trained neurons, random ones
    /// elsewhere.
    fn fill_rows(
        &self,
        tensor: &SourceTensor,
        scattered: &Scattered,
        offset: u64,
        chunk: &mut [u8],
    ) -> Result<()> {
        let row_bytes = self.plan.hidden * 2;
        let first = offset as usize / row_bytes;
        chunk.par_chunks_mut(row_bytes).enumerate().try_for_each(|(i, row)| {
            match scattered.trained[first + i] {
                Some(neuron) => self.source.read_at(tensor, (neuron * row_bytes) as u64, row),
                None => {
                    let index = ((first + i) * self.plan.hidden) as u64;
                    scattered.random.fill(scattered.key, index, row);
                    Ok(())
                }
            }
        })
    }

    /// Fills rows of down: the trained columns at their new places, zeros elsewhere.
    fn fill_columns(
        &self,
        tensor: &SourceTensor,
        scattered: &Scattered,
        offset: u64,
        chunk: &mut [u8],
    ) -> Result<()> {
        let row_bytes = self.plan.width * 2;
        let trained_bytes = self.plan.trained * 2;
        let first = offset as usize / row_bytes;
        chunk.fill(0);
        chunk.par_chunks_mut(row_bytes).enumerate().try_for_each_init(
            || vec![0u8; trained_bytes],
            |trained, (i, row)| {
                self.source.read_at(tensor, ((first + i) * trained_bytes) as u64, trained)?;
                let row = row.as_chunks_mut::<2>().0;
                for (weight, &position) in
                    trained.as_chunks::<2>().0.iter().zip(&scattered.positions)
                {
                    row[position] = *weight;
                }
                Ok(())
            },
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whatever the neurons are moved by, a reduction over 32 lanes adds the same terms in the same
    /// order; by group, those of a scale stay together.
    #[test]
    fn neurons_keep_their_lanes_and_groups_their_scales() {
        for (trained, width) in [(96, 1024), (256, 14336), (64, 64), (100, 6400)] {
            for neurons in [Neurons::Scattered, Neurons::ByGroup] {
                let positions = positions(trained, width, 7, neurons);
                for (j, &position) in positions.iter().enumerate() {
                    assert!(position < width && position % LANES == j % LANES);
                    assert!(j < LANES || positions[j - LANES] < position);
                    let group = positions[j - j % GROUP];
                    let together = position == group + j % GROUP && group.is_multiple_of(GROUP);
                    assert!(together || neurons == Neurons::Scattered, "{trained}, {width}: {j}");
                }
            }
        }
    }
}
