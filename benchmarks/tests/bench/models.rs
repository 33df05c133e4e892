//! The page of published models.

use std::path::Path;
use std::sync::LazyLock;

use safetensors::Dtype;
use sws::Outline;
use sws_benchmarks::models::page;
use sws_benchmarks::published::{Published, configs};
use sws_format::Configuration;

static PAGE: LazyLock<String> = LazyLock::new(|| page(&configs()).unwrap());

#[test]
fn page_is_what_the_command_writes() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/models.md");
    let written = std::fs::read_to_string(path).unwrap();
    let differs = PAGE.lines().zip(written.lines()).find(|(a, b)| a != b);
    assert!(
        *PAGE == written,
        "run `sws-bench models > docs/models.md`; the first line that differs: {differs:?}"
    );
}

#[test]
fn speeds_of_the_readme_are_those_of_the_page() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../README.md");
    let readme = std::fs::read_to_string(path).unwrap();
    let section = PAGE.split("\n## ").find(|section| section.starts_with("Models\n")).unwrap();
    let rows = |text: &str| -> Vec<Vec<String>> {
        let cells = |line: &str| line.split('|').map(|cell| cell.trim().to_owned()).collect();
        text.lines().filter(|line| line.starts_with('|')).map(cells).collect()
    };
    let (page, mut name, mut compared) = (rows(section), String::new(), 0);
    for row in rows(&readme) {
        let is_exact = match row[2].as_str() {
            "lossless" => true,
            "q4, inexact" => false,
            _ => continue,
        };
        if !row[1].is_empty() {
            name.clone_from(&row[1]);
        }
        let found = page
            .iter()
            .find(|planned| planned[1] == name && planned[2].ends_with("q4") != is_exact)
            .unwrap_or_else(|| panic!("no speeds of {name}"));
        let disk = format!("{} GiB", found[3]);
        let shown = [&[disk], &found[5..]].concat();
        assert_eq!(row[3..], shown, "{name}");
        compared += 1;
    }
    assert!(compared > 5, "only {compared} rows in README.md");
}

#[test]
fn totals_are_those_of_the_names() {
    // Billions of parameters, as the makers round them.
    #[rustfmt::skip]
    let cases = [
        ("mistralai/Mixtral-8x7B-v0.1", 46.7), ("mistralai/Mixtral-8x22B-v0.1", 141.0), ("Qwen/Qwen3-30B-A3B", 30.5),
        ("Qwen/Qwen3-235B-A22B", 235.0), ("Qwen/Qwen3-Coder-480B-A35B-Instruct", 480.0),
        ("openai/gpt-oss-20b", 20.9), ("openai/gpt-oss-120b", 116.8), ("deepseek-ai/DeepSeek-V2-Lite", 15.7),
        ("deepseek-ai/DeepSeek-V2", 236.0), ("deepseek-ai/DeepSeek-V3", 671.0), ("moonshotai/Kimi-K2-Instruct", 1026.0),
        ("moonshotai/Kimi-K3", 2780.0),
        ("zai-org/GLM-4.5", 353.0), ("zai-org/GLM-4.5-Air", 106.8), ("Qwen/Qwen3-8B", 8.19),
        ("meta-llama/Llama-3.1-8B", 8.03),
    ];
    for (name, expected) in cases {
        let [all, _] = parameters(name);
        assert!((all / expected - 1.0).abs() < 0.01, "{name}: {all} B for {expected} B");
    }
}

/// Billions of parameters of a published model, and of those of a token.
fn parameters(name: &str) -> [f64; 2] {
    let found = Published::names().unwrap().into_iter().find_map(|config| {
        let published = Published::named(&config).unwrap()?;
        (published.config()["_name_or_path"] == name).then_some(published)
    });
    let published = found.unwrap_or_else(|| panic!("no configuration of {name}"));
    outline(&published).spec().unwrap().parameters().map(|number| number as f64 / 1e9)
}

fn outline(published: &Published) -> Outline {
    let json = serde_json::to_vec(published.config()).unwrap();
    let config = Configuration::from_json("config.json", &json).unwrap();
    Outline::of(Path::new("config.json"), &config).unwrap()
}

#[test]
fn few_layers_have_experts_if_many_have() {
    for name in Published::names().unwrap() {
        let mut published = Published::named(&name).unwrap().unwrap();
        let routed = outline(&published).spec().is_some_and(|spec| spec.moes().next().is_some());
        published.keep_layers(3).unwrap();
        let few = outline(&published);
        let Some(spec) = few.spec() else { continue };
        assert_eq!(spec.layers.len(), 3, "{name}");
        assert!(!routed || spec.moes().count() >= 2, "{name}");
    }
}

#[test]
fn int4_weights_are_packed_as_published() {
    let mut published = Published::named("kimi-k2-thinking").unwrap().unwrap();
    published.keep_layers(2).unwrap();
    let tensors = published.tensors().unwrap();
    let find = |name: &str| {
        let tensor = tensors.iter().find(|tensor| tensor.name.ends_with(name)).unwrap();
        (tensor.dtype, tensor.shape.clone())
    };
    let expert = "layers.1.mlp.experts.383.down_proj.weight";
    assert_eq!(find(&format!("{expert}_packed")), (Dtype::I32, vec![7168, 2048 / 8]));
    assert_eq!(find(&format!("{expert}_scale")), (Dtype::BF16, vec![7168, 2048 / 32]));
    let shared = "layers.1.mlp.shared_experts.down_proj.weight";
    assert_eq!(find(shared), (Dtype::BF16, vec![7168, 2048]));
}

#[test]
fn suggestions_have_the_sizes_of_their_configurations() {
    for suggestion in sws::SUGGESTIONS {
        let row = |heading: &str, column: usize| {
            let section = PAGE.split("\n## ").find(|section| section.starts_with(heading));
            let command = format!("`{}`", suggestion.command());
            let row = section?.lines().find(|line| line.contains(&command))?;
            row.split('|').map(str::trim).nth(column).map(str::to_owned)
        };
        let disk = row("Models to begin with", 3).unwrap_or_default();
        let disk: f64 = disk.split(' ').next().unwrap().parse().unwrap();
        assert_eq!(disk.ceil(), suggestion.disk as f64, "{suggestion:?}");
        for (shown, said) in parameters(suggestion.id).into_iter().zip(suggestion.parameters) {
            let said: f64 = said.parse().unwrap();
            assert!((shown - said).abs() < 0.051, "{suggestion:?}: {shown}");
        }
    }
}
