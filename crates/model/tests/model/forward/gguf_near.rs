//! Files with other sums than those of safetensors: keys and values of latents in two matrices, and
//! delta nets, whose rates of decay are computed by the converter and whose heads may be in another
//! order.

use std::path::Path;

use rayon::ThreadPoolBuilder;
use sws_format::open_checkpoint;
use sws_kernels::{Activations, Tier};
use sws_model::{CausalLm, ForwardPass, KvPrecision, Mixer, PassSize, Session};
use sws_shard::{ShardOptions, shard};
use sws_testing::gguf::{GgufFile, Key, converted, convertible, fused};
use sws_testing::goldens::golden_dir;
use sws_testing::resident;

use crate::forward::bits::{Piecemeal, score};
use crate::forward::gguf::{in_place, logits};
use crate::forward::support::{Fixture, Recorder};

const TOKENS: [u32; 40] = {
    let mut tokens = [0; 40];
    let mut i = 0;
    while i < 40 {
        tokens[i] = (i as u32 * 37 + 3) % 97;
        i += 1;
    }
    tokens
};

/// True for files whose sums have another order than those of safetensors.
pub(crate) fn is_near(file: &GgufFile) -> bool {
    let parts = ["attn_k_b", "ssm_a"];
    file.tensors.iter().any(|tensor| parts.iter().any(|part| tensor.name.contains(part)))
}

fn files() -> Vec<(String, GgufFile)> {
    let files = convertible().into_iter().map(|(name, _, file)| (name, file));
    files.filter(|(_, file)| is_near(file)).collect()
}

fn written(dir: &Path, file: &GgufFile) -> std::path::PathBuf {
    let path = dir.join("model.gguf");
    file.write(&path);
    path
}

#[test]
fn files_are_near_and_fused_latents_give_the_bits_of_safetensors() {
    let dir = tempfile::tempdir().unwrap();
    let files = files();
    assert!(files.len() >= 9, "{}", files.len());
    for (name, file) in files {
        let fixture = Fixture::open(&name);
        let expected = logits(&fixture.spec, fixture.source());
        let separate = in_place(&written(dir.path(), &file));
        let largest = expected.iter().map(|&x| f32::from_bits(x).abs()).fold(0.0, f32::max);
        for (found, expected) in separate.iter().zip(&expected) {
            let (found, expected) = (f32::from_bits(*found), f32::from_bits(*expected));
            assert!((found - expected).abs() <= 1e-5 * largest, "{name}: {found} {expected}");
        }
        if file.tensors.iter().any(|tensor| tensor.name.contains("attn_k_b")) {
            assert!(in_place(&written(dir.path(), &fused(file))) == expected, "{name} fused");
        }
    }
}

/// Whatever the chunks, tiers, threads and blocks, and as shards.
#[test]
fn near_files_give_the_same_bits_everywhere() {
    for (name, file) in files() {
        let dir = tempfile::tempdir().unwrap();
        let path = written(dir.path(), &file);
        let (manifest, spec) = sws_testing::open(&path).unwrap();
        let fused = |mixer: &Mixer| matches!(mixer, Mixer::Latent(latent) if !latent.split);
        assert!(!spec.layers.iter().any(|layer| fused(&layer.mixer)), "{name}");
        let source = || resident(dir.path(), &manifest, &spec).unwrap();
        let session = |tier| {
            let model = ForwardPass::with_tier(spec.clone(), tier);
            Session::new(model, source(), usize::MAX, KvPrecision::F32)
        };
        let expected = score(session(Tier::best()), &TOKENS, TOKENS.len());
        for tier in Tier::available() {
            assert!(score(session(tier), &TOKENS, TOKENS.len()) == expected, "{name}: {tier}");
        }
        for chunk in [1, 7] {
            let found = score(session(Tier::best()), &TOKENS, chunk);
            assert!(found == expected, "{name}: {chunk}");
        }
        for rows in [1, 5, 16, usize::MAX] {
            let model = ForwardPass::new(spec.clone());
            let source = Piecemeal { inner: source(), together: 1, rows };
            let session = Session::new(model, source, usize::MAX, KvPrecision::F32);
            let pool = ThreadPoolBuilder::new().num_threads(3).build().unwrap();
            let found = pool.install(|| score(session, &TOKENS, 9));
            assert!(found == expected, "{name}: {rows} rows");
        }
        let mut measured = session(Tier::best());
        measured.set_chunk(9);
        measured.score(&TOKENS, &mut Recorder::default()).unwrap();
        let threads = rayon::current_num_threads();
        let size = PassSize {
            tokens: 9,
            logits: 9,
            positions: spec.context,
            threads,
            strip: PassSize::STRIP,
            packings: manifest.packings(Activations::F32, false),
        };
        let (grown, most) = (measured.state().work_bytes(), spec.work_bytes(Tier::best(), size));
        assert!(grown <= most, "{name}: {grown} bytes above {most}");
        let shards = tempfile::tempdir().unwrap();
        let out = shards.path().join("shards");
        let checkpoint = open_checkpoint(&path, None).unwrap();
        let naming = sws_model::naming(checkpoint.config()).unwrap();
        shard(&*checkpoint, &*naming, &out, &ShardOptions::default(), &|_| ()).unwrap();
        let sharded = Fixture::at(&out);
        assert!(score(sharded.session(), &TOKENS, TOKENS.len()) == expected, "{name} in shards");
    }
}

/// Keys that older files do not have.
#[test]
fn absent_keys_of_deepseek() {
    let spec = |change: &dyn Fn(&mut GgufFile)| {
        let mut file = converted(&golden_dir("deepseek_v3")).unwrap();
        change(&mut file);
        let dir = tempfile::tempdir().unwrap();
        let path = written(dir.path(), &file);
        sws_model::ModelSpec::of(open_checkpoint(&path, None).unwrap().config())
    };
    let without = |file: &mut GgufFile, key: &str| {
        file.keys.retain(|(name, _)| !name.ends_with(key));
    };
    let known = spec(&|_| ()).unwrap();
    // The function of the router shows in its tensors.
    assert_eq!(spec(&|file| without(file, "expert_gating_func")).unwrap(), known);
    let error = spec(&|file| without(file, "kv_lora_rank")).unwrap_err().to_string();
    assert!(error.contains("`deepseek2.attention.kv_lora_rank`"), "{error}");
    let error = spec(&|file| {
        without(file, "rope.dimension_count");
        file.key("deepseek2.rope.dimension_count", Key::U32(1000));
    });
    let error = error.unwrap_err().to_string();
    assert!(error.contains("`deepseek2.rope.dimension_count` is 1000"), "{error}");
}
