//! Prompt formats of models that are published without a template. Their publishers describe the
//! format by a program. Here it is a template, so that the limits of templates apply.

/// Model types, each with the template of its format.
const FORMATS: [(&str, &str); 3] = [
    ("deepseek_v32", include_str!("formats/deepseek_v32.jinja")),
    ("deepseek_v4", include_str!("formats/deepseek_v4.jinja")),
    ("kimi_k3", include_str!("formats/kimi_k3.jinja")),
];

/// The template of a model type.
pub(super) fn of(model_type: &str) -> Option<&'static str> {
    let (_, template) = FORMATS.iter().find(|(name, _)| *name == model_type)?;
    Some(template)
}
