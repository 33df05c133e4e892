//! Files that llama.cpp's converter wrote (`tests/goldens/gguf_converted.py`) give the logits, routes
//! and tokens of transformers, in place and as shards.

use std::path::{Path, PathBuf};

use sws_format::open_checkpoint;
use sws_model::{CausalLm, ModelSpec};
use sws_shard::{ShardOptions, shard};
use sws_testing::gguf::{GgufFile, Key};
use sws_testing::goldens::{Golden, goldens};

use crate::forward::support::{Fixture, Recorder, argmax};

fn folders() -> Vec<PathBuf> {
    let entries = goldens().join("gguf").read_dir().unwrap();
    let mut folders: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    folders.sort();
    assert!(folders.len() >= 18, "{folders:?}");
    folders
}

/// The bits of the logits, which are near those of transformers.
fn check(fixture: &Fixture, golden: &Golden) -> Result<Vec<u32>, String> {
    let mut seen = Recorder::default();
    fixture.session().score(&golden.tokens, &mut seen).map_err(|error| error.to_string())?;
    let largest = golden.logits.iter().fold(1.0, |most: f32, x| most.max(x.abs()));
    let worst = seen.logits.iter().zip(&golden.logits).map(|(a, b)| (a - b).abs());
    let worst = worst.fold(0.0, f32::max);
    let finite = seen.logits.iter().all(|logit| logit.is_finite());
    if !finite || seen.logits.len() != golden.logits.len() || worst >= 1e-4 * largest {
        return Err(format!("logits differ by {worst}"));
    }
    let layers = golden.moe_layers.iter().map(|&layer| layer as usize);
    let routes: Vec<u32> = layers.flat_map(|layer| seen.routes[&layer].clone()).collect();
    if routes != golden.routes || seen.routes.len() != golden.moe_layers.len() {
        return Err("other experts".to_owned());
    }
    let mut session = fixture.session();
    let mut tokens = vec![argmax(session.prefill(&golden.tokens).unwrap())];
    while tokens.len() < golden.greedy.len() {
        tokens.push(argmax(session.decode(tokens[tokens.len() - 1]).unwrap()));
    }
    match tokens == golden.greedy {
        true => Ok(seen.logits.iter().map(|logit| logit.to_bits()).collect()),
        false => Err("other tokens".to_owned()),
    }
}

fn sharded(dir: &Path, out: &Path) {
    let checkpoint = open_checkpoint(dir, None).unwrap();
    let naming = sws_model::naming(checkpoint.config()).unwrap();
    shard(&*checkpoint, &*naming, out, &ShardOptions::default(), &|_| ()).unwrap();
}

/// What is wrong with a file.
fn wrong(dir: &Path) -> Result<(), String> {
    let golden = Golden::read(dir);
    let open = |dir: &Path| {
        let (manifest, spec) = sws_testing::open(dir).map_err(|error| error.to_string())?;
        sws_testing::resident(dir, &manifest, &spec).map_err(|error| error.to_string())?;
        Ok::<_, String>(Fixture::at(dir))
    };
    let expected = check(&open(dir)?, &golden)?;
    let temp = tempfile::tempdir().unwrap();
    let out = temp.path().join("shards");
    sharded(dir, &out);
    match check(&open(&out)?, &golden)? == expected {
        true => Ok(()),
        false => Err("other bits in shards".to_owned()),
    }
}

#[test]
fn converted_files_give_the_logits_of_transformers() {
    let wrong = folders().into_iter().filter_map(|dir| Some((wrong(&dir).err()?, dir)));
    let wrong: Vec<_> = wrong.collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

type Change<'a> = &'a dyn Fn(&mut GgufFile, &str);

/// The error of a file with a change, or none.
fn refusal(file: &GgufFile, key: &str, change: Change<'_>) -> Option<String> {
    let mut file = file.clone();
    change(&mut file, key);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.gguf");
    file.write(&path);
    let checkpoint = open_checkpoint(&path, None).unwrap();
    Some(ModelSpec::of(checkpoint.config()).err()?.to_string())
}

fn set(file: &mut GgufFile, key: &str, value: Key) {
    file.keys.retain(|(name, _)| name != key);
    file.key(key, value);
}

/// Any key absent, absurd or of another type: a sentence, or a model.
#[test]
fn bad_keys_are_refused_in_a_sentence() {
    let changes: [(&str, Change<'_>); 7] = [
        ("absent", &|file, key| file.keys.retain(|(name, _)| name != key)),
        ("absurd", &|file, key| set(file, key, Key::U32(u32::MAX))),
        ("zero", &|file, key| set(file, key, Key::U32(0))),
        ("a text", &|file, key| set(file, key, "many".into())),
        ("a list", &|file, key| set(file, key, Key::Ints(vec![3]))),
        ("no list", &|file, key| set(file, key, Key::Ints(Vec::new()))),
        ("negative", &|file, key| set(file, key, Key::F32(-1e30))),
    ];
    for dir in folders() {
        let file = GgufFile::read(&dir.join("model.gguf"));
        let Key::Text(architecture) =
            &file.keys.iter().find(|(name, _)| name == "general.architecture").unwrap().1
        else {
            panic!("no architecture");
        };
        let own = format!("{architecture}.");
        let keys = file.keys.iter().map(|(name, _)| name.clone());
        let keys: Vec<String> = keys.filter(|name| name.starts_with(&own)).collect();
        assert_eq!(refusal(&file, "", &|_, _| ()), None, "{architecture}");
        let mut refused = 0;
        let mut texts = Vec::new();
        for key in &keys {
            for (what, change) in changes {
                let error = refusal(&file, key, change);
                if let Some(error) = &error {
                    assert!(error.starts_with("model.gguf "), "{key} {what}: {error}");
                    assert!(!error.contains('\n') && error.len() < 400, "{key} {what}: {error}");
                    refused += 1;
                }
                if what == "a text" && error.is_none() {
                    texts.push(key);
                }
            }
        }
        assert!(refused > 3 * keys.len(), "{architecture}: {refused} of {}", keys.len());
        // Widths of dense layers in a model without any, and numbers for pictures.
        assert!(texts.len() <= 3, "{architecture}: {texts:?}");
    }
}

#[test]
fn what_is_wrong_is_named() {
    #[rustfmt::skip]
    let cases: &[(&str, &str, Change<'_>, &str)] = &[
        ("deepseek4", "deepseek4.hash_layer_count", &|f, key| f.keys.retain(|(name, _)| name != key), "has no `deepseek4.hash_layer_count`; download it again"),
        ("deepseek4", "deepseek4.embedding_length_out", &|f, key| set(f, key, Key::U32(7)), "is damaged (`deepseek4.embedding_length_out` is 7)"),
        ("deepseek4", "deepseek4.swiglu_clamp_shexp", &|f, key| set(f, key, Key::Floats(vec![2.0, 3.0])), "`deepseek4.swiglu_clamp_exp` with different values for layers"),
        ("deepseek4", "deepseek4.attention.compress_ratios", &|f, key| set(f, key, Key::Ints(vec![4])), "`compress_ratios`, of 1 entries for 2 layers"),
        ("qwen4exp", "qwen4exp.ple.layers", &|f, key| set(f, key, Key::Ints(vec![0, 2])), "`qwen4exp.ple.layers` with several layers"),
        ("qwen4exp", "qwen4exp.ple.head_offsets", &|f, key| set(f, key, Key::Ints(vec![0, 5])), "`offsets`, of 2 entries, where 4 are needed"),
        ("qwen4exp", "qwen4exp.ple.head_vocab_sizes", &|f, key| set(f, key, Key::Ints(vec![5, 0, 1, 1])), "where a head without rows is listed"),
        ("qwen4exp", "qwen4exp.ple.ngram_size", &|f, key| f.keys.retain(|(name, _)| name != key), "has no `qwen4exp.ple.ngram_size`"),
        ("llama4", "llama4.attention.sliding_window", &|f, key| set(f, key, Key::U32(64)), "`llama4.attention.sliding_window` = 64"),
        ("granitehybrid", "granitehybrid.ssm.inner_size", &|f, key| set(f, key, Key::U32(85)), "`granitehybrid.ssm.inner_size` is 85"),
        ("minimax-m3", "minimax-m3.expert_weights_norm", &|f, key| set(f, key, Key::Bool(false)), "`minimax-m3.expert_weights_norm` = false"),
        ("nemotron_h_moe", "nemotron_h_moe.feed_forward_length", &|f, key| set(f, key, Key::Ints(vec![0, 17, 17, 17, 0])), "layers with both attention and experts"),
        ("kimi-linear", "kimi-linear.attention.head_count_kv", &|f, key| set(f, key, Key::Ints(vec![0, 1])), "`kimi-linear.attention.head_count_kv` is [0,1]"),
        ("bailingmoe2", "bailingmoe2.expert_shared_feed_forward_length", &|f, key| set(f, key, Key::U32(9)), "`bailingmoe2.expert_shared_feed_forward_length` is 9"),
        ("bailingmoe3", "bailingmoe3.kda.safe_gate", &|f, key| set(f, key, "yes".into()), "kda_safe_gate"),
        ("step35", "step35.attention.head_count", &|f, key| set(f, key, Key::Ints(vec![4, 6, 4, 4])), "`step35.attention.head_count` with different values for layers"),
        ("mimo2", "mimo2.attention.sliding_window_pattern", &|f, key| set(f, key, Key::Ints(vec![0, 2, 1, 0])), "`mimo2.attention.sliding_window_pattern` is [0,2,1,0]"),
        ("glm5-next", "glm5-next.attention.layer_norm_epsilon", &|f, key| set(f, key, Key::F32(0.1)), "`glm5-next.attention.layer_norm_epsilon` = 0.1"),
        ("laguna", "laguna.new_option", &|f, key| set(f, key, Key::U32(1)), "`laguna.new_option` = 1, which is not supported in GGUF files"),
    ];
    for (architecture, key, change, expected) in cases {
        let file = GgufFile::read(&goldens().join("gguf").join(architecture).join("model.gguf"));
        let error = refusal(&file, key, *change).unwrap();
        assert!(error.starts_with("model.gguf ") && error.contains(expected), "{error}");
    }
}
