//! A GGUF file as a program uses it: in place and as shards, with its tokenizer and template.

use std::path::Path;

use sws_format::open_checkpoint;
use sws_shard::{ShardOptions, shard};
use sws_testing::gguf::conversational;
use sws_testing::goldens;

use super::TOKENIZER;
use crate::{LoadedModel, Model, Options, Request};

fn load(model: &Model) -> LoadedModel {
    let mut options = Options { ram: "min".parse().unwrap(), ..Options::default() };
    options.streaming.warm_start = false;
    model.with(options).load().unwrap()
}

/// Writes a golden with a tokenizer as a GGUF file, and as safetensors.
fn write(dir: &Path) {
    goldens::copy("mixtral", &dir.join("safetensors"));
    let file = conversational(&dir.join("safetensors"), "{{ messages[0].content }}").unwrap();
    file.write(&dir.join("model.gguf"));
}

/// A GGUF file has everything in itself, so that errors name it and no part.
#[test]
fn errors_name_the_file() {
    let temp = tempfile::tempdir().unwrap();
    write(temp.path());
    let path = temp.path().join("model.gguf");
    let model = Model::at(path.clone(), None, None, None).unwrap();
    let expected = format!("`{}`: spoilt", path.display());
    assert_eq!(model.error("spoilt").to_string(), expected);
    assert_eq!(model.error_of(TOKENIZER, "spoilt").to_string(), expected);
    let model = Model::at(temp.path().join("safetensors"), None, None, None).unwrap();
    let expected = temp.path().join("safetensors/tokenizer.json").display().to_string();
    assert_eq!(model.error_of(TOKENIZER, "spoilt").to_string(), format!("`{expected}`: spoilt"));
}

#[test]
fn same_text_as_from_safetensors() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path();
    write(dir);
    let shards = dir.join("shards");
    let from = tempfile::tempdir().unwrap();
    std::fs::copy(dir.join("model.gguf"), from.path().join("model.gguf")).unwrap();
    let source = open_checkpoint(from.path(), None).unwrap();
    let naming = sws_model::naming(source.config()).unwrap();
    shard(&*source, &*naming, &shards, &ShardOptions::default(), &|_| ()).unwrap();

    let mut texts = Vec::new();
    for path in [dir.join("safetensors"), dir.join("model.gguf"), shards] {
        let model = Model::at(path.clone(), None, None, None).unwrap();
        let tokenizer = model.tokenizer().unwrap().unwrap();
        let ids = tokenizer.encode("once upon", true).unwrap();
        if path.ends_with("safetensors") {
            assert!(model.chat_template().is_err());
        } else {
            assert!(model.chat_template().is_ok());
            assert_eq!(model.is_sharded(), path.ends_with("shards"));
        }
        let mut loaded = load(&model);
        let request = Request::from("once upon").seed(7).temperature(0.8).max_new_tokens(12);
        let mut generate = loaded.generate(request).unwrap();
        assert!(generate.by_ref().all(|piece| piece.is_ok()));
        let made = generate.finish();
        texts.push((ids, made.tokens, made.text));
    }
    assert_eq!(texts[0], texts[1]);
    assert_eq!(texts[0], texts[2]);
}
