//! Configurations from which an entry was taken, or in which it has another name.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};
use sws_format::Configuration;
use sws_model::ModelSpec;
use sws_testing::goldens::{golden_dir, variants};

/// Objects that hold entries of another model, or of the language model within another.
const LEVELS: [&str; 3] = ["text_config", "vision_config", "audio_config"];

/// What taking an entry out of an object of a feature means, where it is not refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Meaning {
    /// The same.
    Same,
    /// Another computation.
    Other,
}
use Meaning::{Other, Same};

/// The entries that may be missing, by object and key, and what that means in the goldens.
#[rustfmt::skip]
const MAY_BE_MISSING: &[(&str, &[Meaning])] = &[
    // The class has a default, the heads of all layers. The other entries must agree with those of all layers.
    ("attention_other_setting.attention_type", &[Same]),
    ("attention_other_setting.head_dim", &[Same]),
    ("attention_other_setting.num_attention_groups", &[Same]),
    ("attention_other_setting.num_attention_heads", &[Other]),
    // Rates of the class.
    ("compress_rates.compressed_sparse_attention", &[Same]),
    ("compress_rates.heavily_compressed_attention", &[Other]),
    // Sizes of the class. Without a bound, decays have none, or that of the class.
    ("linear_attn_config.gate_lower_bound", &[Same, Other]),
    ("linear_attn_config.head_dim", &[Other]),
    ("linear_attn_config.num_heads", &[Other]),
    ("linear_attn_config.safe_gate", &[Same]),
    ("linear_attn_config.short_conv_kernel_size", &[Same, Other]),
    ("linear_attn_config.use_full_rank_gate", &[Other]),
    // Numbers of the class.
    ("loop_config.gate_rank", &[Other]),
    ("loop_config.num_passes", &[Same]),
    // Sizes of the class. The others may have only one value.
    ("sparse_attention_config.sparse_block_size", &[Other]),
    ("sparse_attention_config.sparse_disable_index_value", &[Same]),
    ("sparse_attention_config.sparse_index_dim", &[Other]),
    ("sparse_attention_config.sparse_init_block", &[Same]),
    ("sparse_attention_config.sparse_local_block", &[Same, Other]),
    ("sparse_attention_config.sparse_num_index_heads", &[Same, Other]),
    ("sparse_attention_config.sparse_score_type", &[Same]),
    ("sparse_attention_config.sparse_topk_blocks", &[Other]),
    ("sparse_attention_config.use_sparse_attention", &[Same]),
    // Tensors say their own encoding, and these may only contradict them. Where nothing is said of packed codes,
    // columns are in order, in groups of 128, and zero points are less one.
    ("quantization_config.activation_scheme", &[Same]),
    ("quantization_config.bits", &[Same]),
    ("quantization_config.checkpoint_format", &[Same, Other]),
    ("quantization_config.config_groups", &[Same]),
    ("quantization_config.config_groups.*.targets", &[Same]),
    ("quantization_config.config_groups.*.weights", &[Same]),
    ("quantization_config.config_groups.*.weights[float].group_size", &[Same]),
    ("quantization_config.config_groups.*.weights[float].num_bits", &[Same]),
    ("quantization_config.config_groups.*.weights[float].strategy", &[Same]),
    ("quantization_config.config_groups.*.weights[float].symmetric", &[Same]),
    ("quantization_config.config_groups.*.weights[float].type", &[Same]),
    ("quantization_config.config_groups.*.weights[int].actorder", &[Same]),
    ("quantization_config.config_groups.*.weights[int].group_size", &[Same]),
    ("quantization_config.config_groups.*.weights[int].num_bits", &[Same]),
    ("quantization_config.config_groups.*.weights[int].strategy", &[Same]),
    ("quantization_config.config_groups.*.weights[int].symmetric", &[Same]),
    ("quantization_config.config_groups.*.weights[int].type", &[Same]),
    ("quantization_config.config_groups.group_0", &[Same]),
    ("quantization_config.desc_act", &[Same, Other]),
    ("quantization_config.dynamic", &[Same]),
    ("quantization_config.dynamic.-:.*mlp\\.gate$", &[Same]),
    ("quantization_config.dynamic.-:.*self_attn.*", &[Same]),
    ("quantization_config.fmt", &[Same]),
    ("quantization_config.format", &[Same]),
    ("quantization_config.group_size", &[Same, Other]),
    ("quantization_config.ignore", &[Same]),
    ("quantization_config.lm_head", &[Same]),
    ("quantization_config.modules_to_not_convert", &[Same]),
    ("quantization_config.pack_dtype", &[Same]),
    ("quantization_config.quant_algo", &[Same]),
    ("quantization_config.scale_fmt", &[Same]),
    ("quantization_config.sym", &[Same]),
    ("quantization_config.version", &[Same]),
    ("quantization_config.weight_block_size", &[Other]),
    ("quantization_config.zero_point", &[Same]),
    // Nothing is scaled where nothing is said. Sections are those of images.
    ("rope_parameters.*[default].partial_rotary_factor", &[Same, Other]),
    ("rope_parameters.*[default].rope_theta", &[Same, Other]),
    ("rope_parameters.*[default].rope_type", &[Same]),
    ("rope_parameters[default].mrope_interleaved", &[Same]),
    ("rope_parameters[default].mrope_section", &[Same]),
    ("rope_parameters[default].partial_rotary_factor", &[Same]),
    ("rope_parameters[default].rope_theta", &[Same, Other]),
    ("rope_parameters[default].rope_type", &[Same]),
    // Bases and shares have defaults, whatever the scaling.
    ("rope_parameters.*[linear].rope_theta", &[Same]),
    ("rope_parameters.*[proportional].partial_rotary_factor", &[Other]),
    ("rope_parameters.*[proportional].rope_theta", &[Same]),
    ("rope_parameters.*[yarn].partial_rotary_factor", &[Same, Other]),
    ("rope_parameters.*[yarn].rope_theta", &[Same, Other]),
    ("rope_parameters[linear].rope_theta", &[Same]),
    ("rope_parameters[yarn].partial_rotary_factor", &[Same]),
    ("rope_parameters[yarn].rope_theta", &[Same, Other]),
    ("rope_scaling[dynamic].rope_theta", &[Same]),
    ("rope_scaling[yarn].partial_rotary_factor", &[Same]),
    ("rope_scaling[yarn].rope_theta", &[Same]),
    // The kind is given twice, or layers of this kind have a default.
    ("rope_parameters.sliding_attention", &[Same]),
    ("rope_scaling[dynamic].rope_type", &[Same]),
    ("rope_scaling[dynamic].type", &[Same]),
    ("rope_scaling[yarn].rope_type", &[Same]),
    ("rope_scaling[yarn].type", &[Same]),
    // It is `alpha` that counts.
    ("rope_scaling[dynamic].factor", &[Same]),
    // Defaults of the scaling: 32 and 1, the context, and what follows from the factor.
    ("rope_parameters.*[yarn].attention_factor", &[Other]),
    ("rope_parameters.*[yarn].beta_fast", &[Same]),
    ("rope_parameters.*[yarn].beta_slow", &[Same]),
    ("rope_parameters.*[yarn].original_max_position_embeddings", &[Other]),
    ("rope_parameters[yarn].attention_factor", &[Other]),
    ("rope_parameters[yarn].beta_fast", &[Same]),
    ("rope_parameters[yarn].beta_slow", &[Same]),
    ("rope_parameters[yarn].mscale", &[Other]),
    ("rope_parameters[yarn].mscale_all_dim", &[Other]),
    ("rope_parameters[yarn].original_max_position_embeddings", &[Other]),
    ("rope_scaling[llama3].original_max_position_embeddings", &[Other]),
    ("rope_scaling[yarn].beta_fast", &[Same]),
    ("rope_scaling[yarn].beta_slow", &[Same]),
    ("rope_scaling[yarn].mscale", &[Other]),
    ("rope_scaling[yarn].mscale_all_dim", &[Other]),
    ("rope_scaling[yarn].original_max_position_embeddings", &[Other]),
    ("rope_scaling[yarn].truncate", &[Other]),
];

/// The names of an entry, outermost first.
type Place = Vec<String>;

fn parsed(name: &str) -> Value {
    let json = std::fs::read(golden_dir(name).join("config.json")).unwrap();
    serde_json::from_slice(&json).unwrap()
}

/// All that a configuration says of the computation, or the reason why it is refused.
fn meaning(config: &Value) -> Result<String, String> {
    let json = config.to_string();
    let config = Configuration::from_json("config.json", json.as_bytes()).unwrap();
    let naming = sws_model::naming(&config).map_err(|error| error.to_string())?;
    let spec = ModelSpec::of(&config).map_err(|error| error.to_string())?;
    Ok(format!("{spec:?} {:?} {}", naming.packed(), naming.has_blocks()))
}

/// The places of all entries, but for those of other models.
fn places(config: &Value, at: &[String], found: &mut Vec<Place>) {
    for (key, value) in config.as_object().into_iter().flatten() {
        let at = [at, std::slice::from_ref(key)].concat();
        if value.is_object() && !["vision_config", "audio_config"].contains(&key.as_str()) {
            places(value, &at, found);
        }
        found.push(at);
    }
}

/// The configuration without the entry, or with it under another name.
fn without(config: &Value, place: &[String], other_name: Option<&str>) -> Value {
    let mut config = config.clone();
    let (key, outer) = place.split_last().unwrap();
    let object = outer.iter().fold(&mut config, |at, key| &mut at[key]).as_object_mut().unwrap();
    let value = object.remove(key).unwrap();
    object.extend(other_name.map(|name| (name.to_owned(), value)));
    config
}

/// The object and key of an entry, if the object is of a feature: the same for all kinds of layers and all
/// groups of matrices, with the scaling that a rotary embedding has.
fn of_feature(config: &Value, place: &[String]) -> Option<String> {
    let (key, outer) = place.split_last()?;
    let object = outer.iter().fold(config, |at, key| &at[key]);
    let names: Vec<&str> =
        outer.iter().map(String::as_str).filter(|name| *name != "text_config").collect();
    names.first().filter(|first| !LEVELS.contains(first))?;
    let names = names.iter().enumerate().map(|(depth, name)| match (depth, name) {
        (1, _) if names[0] == "rope_parameters" => "*",
        (2, _) => "*",
        (_, name) => name,
    });
    let scaling = object.get("rope_type").or(object.get("type")).and_then(Value::as_str);
    let scaling = scaling.map_or(String::new(), |scaling| format!("[{scaling}]"));
    Some(format!("{}{scaling}.{key}", names.collect::<Vec<_>>().join(".")))
}

#[test]
fn entries_of_features_are_refused_where_one_is_missing() {
    let mut outcomes: BTreeMap<String, BTreeSet<Meaning>> = BTreeMap::new();
    for name in variants() {
        let config = parsed(&name);
        let before = meaning(&config).unwrap();
        let mut found = Vec::new();
        places(&config, &[], &mut found);
        for place in found {
            let Some(feature) = of_feature(&config, &place) else { continue };
            let removed = meaning(&without(&config, &place, None));
            // Names that are not known are refused, or read by nothing.
            let other = format!("{}_of_old", place.last().unwrap());
            if let Ok(renamed) = meaning(&without(&config, &place, Some(&other))) {
                assert_eq!(removed.as_ref().ok(), Some(&renamed), "{name} {feature}");
            }
            if let Ok(after) = removed {
                let is = if after == before { Same } else { Other };
                outcomes.entry(feature).or_default().insert(is);
            }
        }
    }
    let listed = MAY_BE_MISSING.iter().map(|(feature, meanings)| {
        ((*feature).to_owned(), meanings.iter().copied().collect::<BTreeSet<_>>())
    });
    let listed: BTreeMap<_, _> = listed.collect();
    assert_eq!(outcomes, listed);
}

/// Configurations of a family have other names for one entry than those of others.
#[test]
fn errors_name_entries_of_the_family() {
    let model_type = |config: &Value| {
        let own = config.get("text_config").and_then(|text| text.get("model_type"));
        own.unwrap_or(&config["model_type"]).to_string()
    };
    let mut of_families: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let configs: Vec<(String, Value, Vec<Place>)> = variants()
        .into_iter()
        .map(|name| {
            let (config, mut found) = (parsed(&name), Vec::new());
            places(&config, &[], &mut found);
            let own = of_families.entry(model_type(&config)).or_default();
            own.extend(found.iter().flatten().cloned());
            (name, config, found)
        })
        .collect();
    let mut wrong = BTreeSet::new();
    for (name, config, found) in configs {
        let own = &of_families[&model_type(&config)];
        for place in &found {
            let Err(message) = meaning(&without(&config, place, None)) else { continue };
            let named = message.split('`').skip(1).step_by(2);
            if !named.clone().any(|named| own.contains(named)) {
                wrong.insert(format!("{name} {}: {message}", place.join(".")));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Refusals of what no model has refuse no model.
#[test]
fn published_configurations_are_read() {
    let mut read = 0;
    for entry in sws_testing::root().join("configs").read_dir().unwrap() {
        let path = entry.unwrap().path();
        match ModelSpec::parse(&std::fs::read(&path).unwrap()) {
            Ok(_) => read += 1,
            Err(error) => {
                let message = error.to_string();
                assert!(message.contains("names the model type"), "{}: {message}", path.display());
            }
        }
    }
    assert!(read > 60, "{read}");
}

/// Waves of Llama 4 Scout are kept or stretched, and none is between them.
#[test]
fn llama3_may_have_one_limit_of_waves() {
    let config = |scaling: Value| {
        let path = sws_testing::root().join("configs/llama-4-scout.json");
        let mut config: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
        config["text_config"]["rope_scaling"] = scaling;
        ModelSpec::parse(config.to_string().as_bytes()).unwrap().ropes[0].inv_freq.clone()
    };
    let scaled = config(json!({"rope_type": "llama3", "factor": 16.0, "low_freq_factor": 1.0,
        "high_freq_factor": 1.0, "original_max_position_embeddings": 8192}));
    let plain = config(Value::Null);
    let kept = |angle: f32| 2.0 * std::f32::consts::PI / angle < 8192.0;
    let expected = plain.iter().map(|&it| if kept(it) { it } else { it / 16.0 });
    assert_eq!(scaled, expected.collect::<Vec<_>>());
    assert_eq!(plain.iter().filter(|&&it| kept(it)).count(), 35);
}

/// Queries of Devstral 2 do not grow.
#[test]
fn growth_of_queries_may_be_none() {
    let growth = |config: &Value| {
        let spec = ModelSpec::parse(config.to_string().as_bytes()).unwrap();
        spec.layers.iter().any(|layer| format!("{:?}", layer.mixer).contains("temperature: Some"))
    };
    for (golden, place) in [
        ("ministral3", "/rope_parameters/llama_4_scaling_beta"),
        ("inkling", "/text_config/log_scaling_alpha"),
        ("inkling2_loop", "/text_config/log_scaling_alpha"),
        ("inkling2_text", "/log_scaling_alpha"),
    ] {
        let mut config = parsed(golden);
        assert!(growth(&config), "{golden}");
        *config.pointer_mut(place).unwrap() = json!(0);
        assert!(!growth(&config), "{golden}");
    }
}
