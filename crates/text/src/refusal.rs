//! Why settings are refused.

/// Reasons why generation settings are refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum GenerationError {
    /// A file is not JSON, or does not have the expected structure.
    #[error("{file} is damaged ({reason}); download it again, or remove it to use the defaults")]
    Damaged {
        file: &'static str,
        /// The error and its place.
        reason: String,
    },
    /// An option out of range.
    #[error("{key} is {value}, and must be {expected}")]
    Option { key: &'static str, value: f32, expected: &'static str },
    /// A value of a file out of range.
    #[error("{origin} gives {value} for {key}, which must be {expected}")]
    Absurd { origin: String, key: &'static str, value: String, expected: &'static str },
}
