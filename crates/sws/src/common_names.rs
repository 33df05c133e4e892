//! Names by which other programs know models.

/// Names of models in other programs, and their ids on the hub. Names without a tag have the size
/// that those programs choose.
const COMMON: [(&str, &str); 34] = [
    ("deepseek-r1:8b", "deepseek-ai/DeepSeek-R1-0528-Qwen3-8B"),
    ("deepseek-r1:671b", "deepseek-ai/DeepSeek-R1-0528"),
    ("deepseek-v3", "deepseek-ai/DeepSeek-V3"),
    ("deepseek-v3.1", "deepseek-ai/DeepSeek-V3.1"),
    ("gemma3", "google/gemma-3-4b-it"),
    ("gemma3:1b", "google/gemma-3-1b-it"),
    ("gemma3:4b", "google/gemma-3-4b-it"),
    ("gemma3:12b", "google/gemma-3-12b-it"),
    ("gemma3:27b", "google/gemma-3-27b-it"),
    ("glm4.5", "zai-org/GLM-4.5"),
    ("glm4.5-air", "zai-org/GLM-4.5-Air"),
    ("gpt-oss", "openai/gpt-oss-20b"),
    ("gpt-oss:20b", "openai/gpt-oss-20b"),
    ("gpt-oss:120b", "openai/gpt-oss-120b"),
    ("kimi-k2", "moonshotai/Kimi-K2-Instruct"),
    ("llama3", "meta-llama/Meta-Llama-3-8B-Instruct"),
    ("llama3.1", "meta-llama/Llama-3.1-8B-Instruct"),
    ("llama3.2", "meta-llama/Llama-3.2-3B-Instruct"),
    ("llama3.2:1b", "meta-llama/Llama-3.2-1B-Instruct"),
    ("llama3.3", "meta-llama/Llama-3.3-70B-Instruct"),
    ("mistral", "mistralai/Mistral-7B-Instruct-v0.3"),
    ("mixtral", "mistralai/Mixtral-8x7B-Instruct-v0.1"),
    ("mixtral:8x22b", "mistralai/Mixtral-8x22B-Instruct-v0.1"),
    ("olmoe", "allenai/OLMoE-1B-7B-0924-Instruct"),
    ("qwen3", "Qwen/Qwen3-8B"),
    ("qwen3:0.6b", "Qwen/Qwen3-0.6B"),
    ("qwen3:1.7b", "Qwen/Qwen3-1.7B"),
    ("qwen3:4b", "Qwen/Qwen3-4B"),
    ("qwen3:14b", "Qwen/Qwen3-14B"),
    ("qwen3:30b", "Qwen/Qwen3-30B-A3B"),
    ("qwen3:32b", "Qwen/Qwen3-32B"),
    ("qwen3:235b", "Qwen/Qwen3-235B-A22B"),
    ("qwen3-coder", "Qwen/Qwen3-Coder-30B-A3B-Instruct"),
    ("smollm2", "HuggingFaceTB/SmolLM2-1.7B-Instruct"),
];

/// The id of a model by its name in other programs, or by the last part of its id.
pub(crate) fn common_name(typed: &str) -> Option<&'static str> {
    let typed = typed.to_lowercase();
    let name = typed.strip_suffix(":latest").unwrap_or(&typed);
    let known = COMMON.iter().find(|(common, _)| *common == name);
    let by_id = || COMMON.iter().find(|(_, id)| last_part(id).eq_ignore_ascii_case(name));
    Some(known.or_else(by_id)?.1)
}

fn last_part(id: &str) -> &str {
    id.rsplit('/').next().unwrap_or(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_other_programs_have_ids() {
        for (typed, id) in [
            ("qwen3:30b", Some("Qwen/Qwen3-30B-A3B")),
            ("Qwen3-30B-A3B", Some("Qwen/Qwen3-30B-A3B")),
            ("llama3:latest", Some("meta-llama/Meta-Llama-3-8B-Instruct")),
            ("qwen3:7b", None),
            ("Qwen/Qwen3-30B-A3B", None),
            ("", None),
        ] {
            assert_eq!(common_name(typed), id, "{typed}");
        }
    }
}
