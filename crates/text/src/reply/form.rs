//! How formats of tool calls write arguments.

/// How the arguments of a tool call are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArgumentForm {
    /// As one JSON object.
    Json,
    /// As tags, one pair for each argument.
    Tags(ArgumentTags),
}

/// Tags around the name and the value of each argument. Values that are text are not escaped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArgumentTags {
    /// Text before the name.
    pub open: &'static str,
    /// Text between name and value.
    named: Named,
    /// Text after the value.
    pub close: &'static str,
    /// Part of the closing tag that no value may contain.
    pub barred: &'static str,
}

/// Text between name and value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Named {
    /// The same for values of all types.
    Untyped(&'static str),
    /// It says whether the value is a string.
    IsString,
    /// It names the type of the value.
    Type,
}

impl ArgumentTags {
    /// `<parameter=KEY>` and the value on lines of its own.
    pub(super) const FUNCTIONS: ArgumentTags = ArgumentTags {
        open: "<parameter=",
        named: Named::Untyped(">\n"),
        close: "\n</parameter>\n",
        barred: "</parameter>",
    };
    /// `<arg_key>KEY</arg_key><arg_value>VALUE</arg_value>`.
    pub(super) const ARG_KEYS: ArgumentTags = ArgumentTags {
        open: "<arg_key>",
        named: Named::Untyped("</arg_key>\n<arg_value>"),
        close: "</arg_value>\n",
        barred: "</arg_value>",
    };
    /// `<parameter name="KEY">VALUE</parameter>`.
    pub(super) const INVOKES: ArgumentTags = ArgumentTags {
        open: "<parameter name=\"",
        named: Named::Untyped("\">"),
        close: "</parameter>\n",
        barred: "</parameter>",
    };
    /// The same with another prefix, and an attribute for strings.
    pub(super) const DSML: ArgumentTags = ArgumentTags {
        open: "<｜DSML｜parameter name=\"",
        named: Named::IsString,
        close: "</｜DSML｜parameter>\n",
        barred: "</｜DSML｜parameter>",
    };
    /// Elements with a type.
    pub(super) const XTML: ArgumentTags = ArgumentTags {
        open: "<|open|>argument key=\"",
        named: Named::Type,
        close: "<|close|>argument<|sep|>",
        barred: "<|close|>",
    };
}

#[cfg(feature = "grammar")]
impl ArgumentTags {
    /// True if the tags say which values are strings. Otherwise the schema of the tool does.
    pub(crate) fn are_typed(&self) -> bool {
        !matches!(self.named, Named::Untyped(_))
    }

    /// The text between the name and a value of this JSON type.
    pub(crate) fn after_name(&self, kind: &str) -> String {
        match self.named {
            Named::Untyped(text) => text.to_owned(),
            Named::IsString => format!("\" string=\"{}\">", kind == "string"),
            Named::Type if kind == "integer" => "\" type=\"number\"<|sep|>".to_owned(),
            Named::Type => format!("\" type=\"{kind}\"<|sep|>"),
        }
    }

    /// The name of an argument as its tag has it; `None` if no tag can have it.
    pub(crate) fn name(&self, name: &str) -> Option<String> {
        if name.is_empty() || name.trim() != name {
            return None;
        }
        if self.named == Named::Type {
            let is_plain = !name.contains("<|");
            return is_plain.then(|| super::xtml::escaped(name));
        }
        (!name.contains(['<', '>', '"', '\n'])).then(|| name.to_owned())
    }
}
