//! Training of a draft's corrections. A correction predicts from the current state where later
//! routers will choose differently from what they would choose on that state.

use candle_core::{DType, Device, Result, Tensor, Var};
use candle_nn::{AdamW, Optimizer, ParamsAdamW};
use sws_draft::{Samples, Trained, Training};

/// Rows per training step.
const BATCH: usize = 256;
/// Rows per evaluation of the loss.
const EVALUATED: usize = 4096;
const RATE: f64 = 4e-3;
const DECAY: f64 = 0.02;
/// Initial factor of the margins.
const SHARPNESS: f32 = 3.0;

struct Net {
    down: Var,
    up: Var,
    constant: Var,
    sharpness: Var,
}

/// Trains on `samples` with AdamW and keeps the weights with the lowest loss on `held_out`.
/// `progress` is called before every step; if it returns false, training stops and the result is
/// `None`.
pub fn train(
    training: &Training,
    samples: &Samples,
    held_out: &Samples,
    progress: &mut dyn FnMut() -> bool,
) -> Result<Option<Trained>> {
    let Training { inputs, targets, experts, rank, epochs, seed } = *training;
    let rows = samples.inputs.len() / inputs;
    let net = Net::new(training)?;
    let parameters = ParamsAdamW { lr: RATE, weight_decay: DECAY, ..ParamsAdamW::default() };
    let vars = [&net.down, &net.up, &net.constant, &net.sharpness].map(Var::clone).to_vec();
    let mut optimizer = AdamW::new(vars, parameters)?;
    let before = net.mean_loss(training, held_out)?;
    let mut best = (before, net.values()?);
    let mut order: Vec<usize> = (0..rows).collect();
    let mut random = seed;
    let steps = epochs * rows.div_ceil(BATCH);
    let mut step = 0;
    for _ in 0..epochs {
        shuffle(&mut order, &mut random);
        for batch in order.chunks(BATCH) {
            if !progress() {
                return Ok(None);
            }
            let half_turn = std::f64::consts::PI * step as f64 / steps as f64;
            optimizer.set_learning_rate(RATE * 0.5 * (1.0 + half_turn.cos()));
            let [x, m, y] = select(samples, training, batch)?;
            optimizer.backward_step(&net.loss(&x, &m, &y)?)?;
            step += 1;
        }
        let loss = net.mean_loss(training, held_out)?;
        if loss < best.0 {
            best = (loss, net.values()?);
        }
    }
    let (loss, [down, up, constant, sharpness]) = best;
    // Transposes the trained [inputs, rank] and [rank, targets · experts] to [rank, inputs] and
    // [targets, experts, rank + 1].
    let down = (0..rank * inputs).map(|i| down[i % inputs * rank + i / inputs]).collect();
    let columns = targets * experts;
    let mut corrections = Vec::with_capacity(targets);
    for (target, &sharpness) in sharpness.iter().enumerate().take(targets) {
        let mut rows = Vec::with_capacity(experts * (rank + 1));
        for column in target * experts..(target + 1) * experts {
            for r in 0..rank {
                rows.push(up[r * columns + column]);
            }
            rows.push(constant[column]);
        }
        corrections.push((rows, sharpness));
    }
    Ok(Some(Trained { down, targets: corrections, losses: [before, loss] }))
}

/// Inputs, margins and uses of the given rows.
fn select(samples: &Samples, training: &Training, rows: &[usize]) -> Result<[Tensor; 3]> {
    let Training { inputs, targets, experts, .. } = *training;
    let pick = |from: &[f32], width: usize| {
        let mut picked = Vec::with_capacity(rows.len() * width);
        for row in rows {
            picked.extend_from_slice(&from[row * width..][..width]);
        }
        picked
    };
    let n = rows.len();
    let device = &Device::Cpu;
    let wide = (n, targets, experts);
    Ok([
        Tensor::from_vec(pick(&samples.inputs, inputs), (n, inputs), device)?,
        Tensor::from_vec(pick(&samples.margins, targets * experts), wide, device)?,
        Tensor::from_vec(pick(&samples.used, targets * experts), wide, device)?,
    ])
}

impl Net {
    fn new(training: &Training) -> Result<Net> {
        let Training { inputs, targets, experts, rank, seed, .. } = *training;
        let mut random = seed ^ 0x5eed;
        let scale = (3.0 / inputs as f32).sqrt();
        let down: Vec<f32> =
            (0..inputs * rank).map(|_| scale * (2.0 * unit(&mut random) - 1.0)).collect();
        let device = &Device::Cpu;
        Ok(Net {
            down: Var::from_tensor(&Tensor::from_vec(down, (inputs, rank), device)?)?,
            up: Var::zeros((rank, targets * experts), DType::F32, device)?,
            constant: Var::zeros((1, targets * experts), DType::F32, device)?,
            sharpness: Var::from_tensor(&Tensor::full(SHARPNESS, (1, targets, 1), device)?)?,
        })
    }

    /// Mean binary cross-entropy.
    fn loss(&self, x: &Tensor, margins: &Tensor, used: &Tensor) -> Result<Tensor> {
        let u = x.matmul(&self.down)?;
        let correction = u.matmul(&self.up)?.broadcast_add(&self.constant)?;
        let logits = margins.broadcast_mul(&self.sharpness)?;
        let logits = (logits + correction.reshape(margins.shape())?)?;
        // log(1 + e^z) - y z, without overflow.
        let soft = (logits.abs()?.neg()?.exp()? + 1.0)?.log()?;
        (logits.relu()? + soft)?.sub(&(logits * used)?)?.mean_all()
    }

    fn mean_loss(&self, training: &Training, samples: &Samples) -> Result<f32> {
        let rows: Vec<usize> = (0..samples.rows_of(training)).collect();
        let mut sum = 0.0;
        for batch in rows.chunks(EVALUATED) {
            let [x, m, y] = select(samples, training, batch)?;
            sum += batch.len() as f32 * self.loss(&x, &m, &y)?.to_scalar::<f32>()?;
        }
        Ok(sum / rows.len().max(1) as f32)
    }

    fn values(&self) -> Result<[Vec<f32>; 4]> {
        let Net { down, up, constant, sharpness } = self;
        Ok([values(down)?, values(up)?, values(constant)?, values(sharpness)?])
    }
}

fn values(var: &Var) -> Result<Vec<f32>> {
    var.flatten_all()?.to_vec1()
}

/// The next number of a sequence (splitmix64).
fn next(random: &mut u64) -> u64 {
    *random = random.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *random;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A uniform number from 0 to 1.
fn unit(random: &mut u64) -> f32 {
    (next(random) >> 40) as f32 / (1u64 << 24) as f32
}

fn shuffle(order: &mut [usize], random: &mut u64) {
    for i in (1..order.len()).rev() {
        order.swap(i, (next(random) % (i as u64 + 1)) as usize);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A hidden direction of the input decides which experts are used; the margins are noise.
    #[test]
    fn a_correction_learns_what_margins_do_not_show() {
        let training =
            Training { inputs: 12, targets: 2, experts: 6, rank: 3, epochs: 60, seed: 1 };
        let mut random = 7;
        let mut samples = |rows: usize| {
            let mut samples = Samples::default();
            for _ in 0..rows {
                let x: Vec<f32> = (0..12).map(|_| 2.0 * unit(&mut random) - 1.0).collect();
                for target in 0..2 {
                    for expert in 0..6 {
                        samples.margins.push(unit(&mut random) - 0.5);
                        let used = x[target] + x[2] * (expert as f32 - 2.5) > 0.0;
                        samples.used.push(f32::from(used));
                    }
                }
                samples.inputs.extend(x);
            }
            samples
        };
        let many = samples(4000);
        let held_out = samples(500);
        let trained = train(&training, &many, &held_out, &mut || true).unwrap().unwrap();
        assert!(trained.losses[1] < 0.3 && trained.losses[0] > 0.6, "{:?}", trained.losses);

        // The returned weights reproduce what was trained.
        let mut right = 0;
        for row in 0..500 {
            let x = &held_out.inputs[row * 12..][..12];
            let u: Vec<f32> = trained
                .down
                .chunks(12)
                .map(|d| d.iter().zip(x).map(|(d, x)| d * x).sum())
                .chain([1.0])
                .collect();
            for (target, (up, margin)) in trained.targets.iter().enumerate() {
                for (expert, up) in up.chunks(4).enumerate() {
                    let at = (row * 2 + target) * 6 + expert;
                    let correction: f32 = up.iter().zip(&u).map(|(a, b)| a * b).sum();
                    let logit = margin * held_out.margins[at] + correction;
                    right += usize::from((logit > 0.0) == (held_out.used[at] > 0.5));
                }
            }
        }
        assert!(right > 500 * 12 * 9 / 10, "{right}");
        assert!(train(&training, &many, &held_out, &mut || false).unwrap().is_none());
    }
}
