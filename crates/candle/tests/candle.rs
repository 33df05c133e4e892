//! The two implementations of the layers agree with each other and with transformers.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use sws_candle::{CandleError, CandleLm, supports};
use sws_format::{Manifest, Pass, open_checkpoint};
use sws_kernels::Encoding;
use sws_model::{
    CausalLm, ForwardError, ForwardPass, KvPrecision, ModelSpec, Observer, ResidentSource, Routed,
    Session, SourceError,
};
use sws_shard::{ShardOptions, shard};
use sws_store::{NVMeWeightStore, StoreOptions};
use sws_testing::goldens::{Golden, goldens, is_quantised, variants};
use sws_testing::{resident, spec};

fn candle(dir: &Path) -> Result<CandleLm, CandleError> {
    CandleLm::from_checkpoint(spec(dir), dir, &mut |_| true)
}

/// The forward pass of `sws-model`.
fn own(dir: &Path) -> Session<ResidentSource> {
    let (manifest, spec) = sws_testing::open(dir).unwrap();
    let source = resident(dir, &manifest, &spec);
    Session::new(ForwardPass::new(spec), source.unwrap(), usize::MAX, KvPrecision::F32)
}

/// The goldens that this backend supports: those of the first eight families in plain floats.
fn supported() -> Vec<PathBuf> {
    const FAMILIES: [&str; 8] =
        ["mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "llama", "mistral", "qwen2", "qwen3"];
    let (quantised, plain): (Vec<_>, Vec<_>) =
        variants().into_iter().partition(|name| is_quantised(name));
    for name in quantised {
        assert!(candle(&goldens().join(&name)).is_err(), "{name}");
    }
    let dirs = plain.into_iter().map(|name| goldens().join(name));
    let is_supported = |dir: &PathBuf| {
        let spec = spec(dir);
        let supported = supports(&spec).is_ok();
        assert_eq!(supported, FAMILIES.contains(&&*spec.model_type), "{}", dir.display());
        supported
    };
    dirs.filter(is_supported).collect()
}

/// Records logits and routes.
#[derive(Default)]
struct Recorder {
    logits: Vec<f32>,
    /// Position, layer, choices.
    routes: Vec<(usize, usize, Vec<u32>)>,
}

impl Observer for Recorder {
    fn routed(&mut self, pass: &Pass, layer: usize, routed: &Routed) -> Result<(), SourceError> {
        let first = pass.first_position();
        let rows = routed.choices.chunks(routed.top_k).enumerate();
        self.routes.extend(rows.map(|(row, choices)| (first + row, layer, choices.to_vec())));
        Ok(())
    }

    fn logits(&mut self, _: usize, logits: &[f32]) {
        self.logits.extend(logits);
    }
}

fn score(lm: &mut dyn CausalLm, tokens: &[u32]) -> Recorder {
    let mut seen = Recorder::default();
    lm.score(tokens, &mut seen).unwrap();
    seen.routes.sort();
    seen
}

#[track_caller]
fn assert_close(found: &[f32], expected: &[f32], what: &dyn std::fmt::Display) {
    assert_eq!(found.len(), expected.len(), "{what}");
    let largest = expected.iter().fold(1.0, |m: f32, x| m.max(x.abs()));
    let worst = found.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(worst < 1e-4 * largest, "{what}: off by {worst}, the largest is {largest}");
    assert!(found.iter().all(|x| x.is_finite()), "{what}");
}

#[test]
fn agrees_with_transformers_with_and_without_cache() {
    for dir in supported() {
        let (name, golden) = (dir.display(), Golden::read(&dir));
        let mut lm = candle(&dir).unwrap();
        assert_close(&score(&mut lm, &golden.tokens).logits, &golden.logits, &name);

        lm.clear();
        let one_by_one = |token: &u32| lm.decode(*token).unwrap().to_vec();
        let logits: Vec<f32> = golden.tokens.iter().flat_map(one_by_one).collect();
        assert_close(&logits, &golden.logits, &name);

        lm.clear();
        let mut greedy = vec![argmax(lm.prefill(&golden.tokens).unwrap())];
        while greedy.len() < golden.greedy.len() {
            greedy.push(argmax(lm.decode(greedy[greedy.len() - 1]).unwrap()));
        }
        assert_eq!(greedy, golden.greedy, "{name}");
    }
}

#[test]
fn agrees_with_the_default_backend_over_several_chunks_and_windows() {
    for dir in supported() {
        let (mut candle, mut own) = (candle(&dir).unwrap(), own(&dir));
        let vocab = candle.vocab() as u32;
        let tokens: Vec<u32> = (0..200u32).map(|i| i.wrapping_mul(2_654_435_761) % vocab).collect();
        let (a, b) = (score(&mut candle, &tokens[..150]), score(&mut own, &tokens[..150]));
        assert_close(&a.logits, &b.logits, &dir.display());
        // Either of two experts with nearly equal probabilities may be chosen.
        let same = a.routes.iter().zip(&b.routes).filter(|(a, b)| a == b).count();
        assert_eq!(a.routes.len(), b.routes.len());
        assert!(same * 100 >= a.routes.len() * 98, "{}: {same}", dir.display());
        // Prompts can be split anywhere.
        for part in tokens[150..].chunks(7) {
            let (a, b) = (candle.prefill(part).unwrap(), own.prefill(part).unwrap());
            assert_close(a, b, &dir.display());
        }
        assert_eq!((candle.len(), candle.limit()), (200, own.limit()));
    }
}

#[test]
fn shards_give_the_bits_of_their_checkpoint() {
    for name in ["mixtral", "qwen2_moe", "llama_linear_tied"] {
        let dir = goldens().join(name);
        let temp = tempfile::tempdir().unwrap();
        let checkpoint = open_checkpoint(&dir, None).unwrap();
        let naming = sws_model::naming(checkpoint.config()).unwrap();
        let options = ShardOptions { encoding: Encoding::Bf12, ..ShardOptions::default() };
        shard(&*checkpoint, naming.as_ref(), temp.path(), &options, &|_| ()).unwrap();
        let manifest = Arc::new(Manifest::load(temp.path()).unwrap());
        let store = NVMeWeightStore::open(manifest, temp.path(), StoreOptions::default()).unwrap();
        let mut loaded = 0;
        let progress = &mut |bytes| {
            loaded = bytes;
            true
        };
        let mut lm = CandleLm::from_shards(spec(&dir), &store, progress).unwrap();
        assert_eq!(loaded, lm.weight_bytes());
        let tokens = Golden::read(&dir).tokens;
        let (a, b) = (score(&mut lm, &tokens), score(&mut candle(&dir).unwrap(), &tokens));
        assert!(a.logits == b.logits, "{name}");
    }
}

#[test]
fn tokens_that_do_not_fit_are_refused() {
    let mut lm = candle(&goldens().join("qwen3_moe")).unwrap();
    assert_eq!(lm.spec().model_type, "qwen3_moe");
    assert_eq!(lm.len(), 0);
    for (tokens, refusal) in
        [(vec![], "no tokens"), (vec![1, 173], "token id 173"), (vec![1; 257], "has 257 tokens")]
    {
        let error: ForwardError = lm.prefill(&tokens).unwrap_err();
        assert!(error.to_string().contains(refusal), "{error}");
        assert_eq!(lm.len(), 0, "refused before anything was processed");
    }
    assert_eq!(lm.prefill(&[1; 256]).unwrap().len(), lm.vocab());
    assert!(matches!(lm.decode(1), Err(ForwardError::ContextFull { used: 256, .. })));
    lm.clear();
    lm.decode(1).unwrap();
    assert_eq!(lm.len(), 1);
}

#[test]
fn context_can_be_limited_and_loading_stopped() {
    let dir = goldens().join("qwen3_moe");
    let mut short = candle(&dir).unwrap().limited(3);
    assert!(matches!(short.prefill(&[1; 4]), Err(ForwardError::ContextFull { limit: 3, .. })));
    let stopped = CandleLm::from_checkpoint(spec(&dir), &dir, &mut |bytes| bytes < 10_000);
    assert!(matches!(stopped, Err(CandleError::Stopped)));
}

#[test]
fn unsupported_models_are_refused() {
    let known = spec(&goldens().join("qwen3_moe"));
    assert!(supports(&known).is_ok());
    let mut other = known.clone();
    other.model_type = "nonesuch".to_owned();
    let refused = supports(&other).unwrap_err().to_string();
    assert!(refused.contains("`nonesuch`") && refused.contains("qwen3_moe"), "{refused}");
    let mut other = known;
    other.ropes[0].inv_freq.pop();
    let refused = supports(&other).unwrap_err().to_string();
    assert!(refused.contains("rotary") && refused.contains("default backend"), "{refused}");
}

#[test]
fn rotary_frequencies_are_computed_independently() {
    // llama3 and linear scaling, and none.
    for name in ["llama", "llama_linear_tied", "qwen3_moe"] {
        let dir = goldens().join(name);
        let logits = |spec: ModelSpec| {
            let mut lm = CandleLm::from_checkpoint(spec, &dir, &mut |_| true).unwrap();
            lm.prefill(&[1, 2, 3, 4, 5, 6, 7]).unwrap().to_vec()
        };
        let mut other = spec(&dir);
        other.ropes.iter_mut().for_each(|rope| rope.inv_freq.fill(0.5));
        assert_eq!(
            logits(other),
            logits(spec(&dir)),
            "{name}: the frequencies of `sws-model` were used"
        );
    }
}

/// No golden that this backend supports is scaled by yarn.
#[test]
fn yarn_is_that_of_the_default_backend() {
    let dir = goldens().join("llama");
    let mut config: serde_json::Value =
        serde_json::from_slice(&fs::read(dir.join("config.json")).unwrap()).unwrap();
    let (manifest, _) = sws_testing::open(&dir).unwrap();
    let mut seen = Vec::new();
    for truncate in [true, false] {
        config["rope_scaling"] = serde_json::json!({
            "rope_type": "yarn", "factor": 8.0, "beta_fast": 20.0, "truncate": truncate,
            "original_max_position_embeddings": 32,
        });
        let spec = ModelSpec::parse(&serde_json::to_vec(&config).unwrap()).unwrap();
        let source = resident(&dir, &manifest, &spec).unwrap();
        let model = ForwardPass::new(spec.clone());
        let mut own = Session::new(model, source, usize::MAX, KvPrecision::F32);
        let mut candle = CandleLm::from_checkpoint(spec, &dir, &mut |_| true).unwrap();
        let tokens: Vec<u32> = (0..100).map(|i| i * 31 % 157).collect();
        let logits = own.prefill(&tokens).unwrap().to_vec();
        assert_close(candle.prefill(&tokens).unwrap(), &logits, &truncate);
        seen.push(logits);
    }
    assert_ne!(seen[0], seen[1]);
}

/// A change to a tensor of a file; returns false to drop the tensor.
type Change = fn(&str, &mut Dtype, &mut Vec<usize>, &mut Vec<u8>) -> bool;

#[test]
fn damaged_checkpoints_are_refused() {
    const ROUTER: &str = "model.layers.1.mlp.gate.weight";
    #[rustfmt::skip]
    let cases: [(Change, &[&str]); 5] = [
        // The change, and words that the error must contain.
        (|name, _, _, _| name != ROUTER, &["lack", ROUTER]),
        (|name, _, shape, _| { if name == ROUTER { shape.reverse() } true }, &[ROUTER, "[40, 7]", "[7, 40]"]),
        (|name, dtype, _, _| { if name == ROUTER { *dtype = Dtype::I16 } true }, &[ROUTER, "I16", "bf16"]),
        (|name, _, _, bytes| { if name == ROUTER { bytes[20..22].fill(0xff) } true }, &[ROUTER, "NaN"]),
        (|name, _, _, bytes| { if name == ROUTER { bytes[20..22].copy_from_slice(&[0x80, 0x7f]) } true }, &[ROUTER, "holds inf"]),
    ];
    let dir = goldens().join("qwen3_moe");
    let bytes = fs::read(dir.join("model.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    for (change, words) in cases {
        let temp = tempfile::tempdir().unwrap();
        fs::copy(dir.join("config.json"), temp.path().join("config.json")).unwrap();
        let mut tensors = Vec::new();
        for (name, view) in file.tensors() {
            let (mut dtype, mut shape) = (view.dtype(), view.shape().to_vec());
            let mut bytes = view.data().to_vec();
            if change(&name, &mut dtype, &mut shape, &mut bytes) {
                tensors.push((name, dtype, shape, bytes));
            }
        }
        let views = tensors.iter().map(|(name, dtype, shape, bytes)| {
            (name, TensorView::new(*dtype, shape.clone(), bytes).unwrap())
        });
        let out = safetensors::serialize(views, None).unwrap();
        fs::write(temp.path().join("model.safetensors"), out).unwrap();
        let Err(refused) = candle(temp.path()) else { panic!("{words:?} was accepted") };
        let refused = refused.to_string();
        assert!(words.iter().all(|word| refused.contains(word)), "{refused}");
    }
}

fn argmax(logits: &[f32]) -> u32 {
    let best = logits.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1));
    best.unwrap().0 as u32
}
