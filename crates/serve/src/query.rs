//! The model that the query of an address names.

/// The value of `model` in a query, decoded; `None` if there is none.
pub(crate) fn model_in(query: Option<&str>) -> Option<String> {
    for field in query?.split('&') {
        if let Some(("model", value)) = field.split_once('=') {
            return Some(decoded(value));
        }
    }
    None
}

/// A text without its `%` codes. A code that is none stays as it is.
fn decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        match code(rest) {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[2..];
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The byte of the `%` code with which a text begins, if it does.
fn code(text: &[u8]) -> Option<u8> {
    let [b'%', high, low, ..] = text else { return None };
    let high = char::from(*high).to_digit(16)?;
    let low = char::from(*low).to_digit(16)?;
    u8::try_from(high << 4 | low).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_decoded() {
        for (query, expected) in [
            (None, None),
            (Some(""), None),
            (Some("a=b"), None),
            (Some("a=b&model=one"), Some("one")),
            (Some("model=Owner%2FName%3Aq8&model=b"), Some("Owner/Name:q8")),
            (Some("model=100%&a"), Some("100%")),
            (Some("model=%+1%e4"), Some("%+1\u{fffd}")),
            (Some("model="), Some("")),
        ] {
            assert_eq!(model_in(query).as_deref(), expected, "{query:?}");
        }
    }
}
