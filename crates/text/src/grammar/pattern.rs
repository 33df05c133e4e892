//! Regular expressions within grammars.

use std::fmt::Write;

/// A text as an expression.
pub(super) fn literal(text: &str) -> String {
    text.chars().fold(String::new(), |mut out, c| {
        let _ = write!(out, "\\x{{{:X}}}", u32::from(c));
        out
    })
}

/// The expression for all texts in which a schema's pattern occurs.
pub(super) fn whole(pattern: &str) -> String {
    let (inner, before) = match pattern.strip_prefix('^') {
        Some(rest) => (rest, ""),
        None => (pattern, "(?s:.*)"),
    };
    let (inner, after) = match inner.strip_suffix('$') {
        Some(rest) if slashes_at_end(rest).is_multiple_of(2) => (rest, ""),
        _ => (inner, "(?s:.*)"),
    };
    let mut out = format!("{before}(?:");
    let mut is_escaped = false;
    for c in inner.chars() {
        match c {
            '/' if !is_escaped => out.push_str("\\/"),
            '\n' => out.push_str("\\n"),
            c => out.push(c),
        }
        is_escaped = c == '\\' && !is_escaped;
    }
    out + ")" + after
}

fn slashes_at_end(text: &str) -> usize {
    text.len() - text.trim_end_matches('\\').len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_may_occur_anywhere_in_a_text() {
        for (pattern, expected) in [
            ("^a$", "(?:a)"),
            ("a/b", "(?s:.*)(?:a\\/b)(?s:.*)"),
            ("^a\\/\\$", "(?:a\\/\\$)(?s:.*)"),
            ("\\\\$", "(?s:.*)(?:\\\\)"),
            ("", "(?s:.*)(?:)(?s:.*)"),
        ] {
            assert_eq!(whole(pattern), expected, "{pattern}");
        }
        assert_eq!(literal("<é"), "\\x{3C}\\x{E9}");
    }
}
