//! Files of an architecture that is not supported: the nearest one that is, and what differs.

use sws_format::Value;

use super::architectures::{ARCHITECTURES, Architecture};
use super::{GgufKeys, GgufMap};
use crate::config::ConfigError;
use crate::families;

/// Maximum number of tensors named.
const NAMED: usize = 3;

/// Minimum number of equal first letters that make two names alike.
const ALIKE: usize = 4;

/// The architecture of files that hold only what a model sees or hears with.
const PROJECTOR: &str = "clip";

/// The refusal of a file of the architecture `name`.
pub(super) fn unknown(name: &str, given: &GgufMap) -> ConfigError {
    let shown: String = name.escape_debug().take(100).collect();
    if name == PROJECTOR {
        return ConfigError::Projector;
    }
    let tensors = given.get("tensors").and_then(Value::as_list).unwrap_or_default();
    let tensors: Vec<&str> = tensors.iter().filter_map(Value::as_str).collect();
    // The fewest tensors that it does not have, then the longest beginning of the name.
    let mut near = Vec::new();
    for architecture in &ARCHITECTURES {
        for model_type in architecture.model_types.iter().flatten() {
            if let Some(strange) = strange(architecture, model_type, &tensors, given) {
                near.push((strange, alike(name, architecture.name), architecture.name));
            }
        }
    }
    let near = near.into_iter();
    let nearest = near.min_by_key(|(strange, alike, _)| (strange.len(), usize::MAX - alike));
    let (strange, _, nearest) = nearest.unwrap_or_default();
    let quoted = strange.iter().take(NAMED).map(|name| {
        let shown: String = name.escape_debug().take(60).collect();
        format!("`{shown}`")
    });
    let mut difference = quoted.collect::<Vec<_>>().join(", ");
    if strange.len() > NAMED {
        difference += &format!(" and {} more", strange.len() - NAMED);
    }
    let difference = match difference.is_empty() {
        true => "has the same tensors, but other keys".to_owned(),
        false => format!("lacks {difference}"),
    };
    ConfigError::UnknownArchitecture { name: shown, nearest, difference }
}

/// The tensors that a model of a known architecture does not have.
fn strange<'t>(
    architecture: &'static Architecture,
    model_type: &str,
    tensors: &[&'t str],
    given: &GgufMap,
) -> Option<Vec<&'t str>> {
    let keys = GgufKeys { architecture, given };
    let family = families::find(model_type)?;
    Some(tensors.iter().copied().filter(|name| !keys.has_use(family, name)).collect())
}

/// Number of equal first letters of two names; 0 if they are few.
fn alike(one: &str, other: &str) -> usize {
    match one.bytes().zip(other.bytes()).take_while(|(a, b)| a == b).count() {
        count if count < ALIKE => 0,
        count => count,
    }
}
