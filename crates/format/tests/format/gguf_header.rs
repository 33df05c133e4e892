//! GGUF headers that are damaged, hostile or cut off. Each is refused with one sentence that says
//! what is wrong and the remedy.

use proptest::prelude::*;
use sws_format::{Dtype, Gguf, GgufError, Value};
use sws_testing::gguf::{GgufFile, Key, text};

use crate::memory::{bound, peak};

fn good() -> GgufFile {
    let mut file = GgufFile::default();
    file.key("general.architecture", "toy".into());
    file.key("toy.block_count", Key::U32(2));
    file.key("toy.eps", Key::F32(0.5));
    file.key("toy.flag", Key::Bool(true));
    file.key("toy.windows", Key::Ints(vec![1, -2, 3]));
    file.key("toy.words", Key::Texts(vec!["a".into(), String::new(), "é".into()]));
    file.tensor("embed", 0, &[3, 4], vec![7; 48]);
    file.tensor("stack", 30, &[2, 3, 4], vec![8; 48]);
    file.tensor("blocks", 8, &[2, 32], vec![9; 68]);
    file
}

fn parse(bytes: &[u8]) -> Result<Gguf, GgufError> {
    Gguf::read(bytes, bytes.len() as u64, |_| true)
}

fn with(change: impl FnOnce(&mut GgufFile)) -> Vec<u8> {
    let mut file = good();
    change(&mut file);
    file.bytes()
}

/// A file with one key more.
fn key(kind: u32, value: &[u8]) -> Vec<u8> {
    with(|file| file.key("x", Key::Raw(kind, value.to_vec())))
}

/// A value that is a list.
fn list(kind: u32, count: u64, bytes: &[u8]) -> Vec<u8> {
    [&kind.to_le_bytes()[..], &count.to_le_bytes(), bytes].concat()
}

/// A file with one tensor more.
fn tensor(name: &str, kind: u32, shape: &[u64], offset: Option<u64>) -> Vec<u8> {
    with(|file| {
        file.tensor(name, kind, shape, vec![0; 16]);
        file.tensors.last_mut().unwrap().offset = offset;
    })
}

#[test]
fn a_header_is_read() {
    for version in [2, 3] {
        let file = GgufFile { version, ..good() };
        let read = parse(&file.bytes()).unwrap();
        assert_eq!((read.version, read.len), (version, file.header().len() as u64));
        assert_eq!(read.keys["toy.block_count"], Value::Int(2));
        assert_eq!(read.keys["toy.eps"], Value::Float(0.5));
        assert_eq!(read.keys["toy.flag"], Value::Bool(true));
        let list = [1, -2, 3].map(Value::Int).to_vec();
        assert_eq!(read.keys["toy.windows"], Value::List(list));
        let words = ["a", "", "é"].map(|word| Value::String(word.to_owned())).to_vec();
        assert_eq!(read.keys["toy.words"], Value::List(words));
        let found: Vec<_> = read.tensors.iter().map(|t| (&*t.name, t.dtype, &*t.shape)).collect();
        let expected: Vec<(&str, Dtype, &[u64])> = vec![
            ("embed", Dtype::F32, &[3, 4]),
            ("stack", Dtype::BF16, &[2, 3, 4]),
            ("blocks", Dtype::Q8_0, &[2, 32]),
        ];
        assert_eq!(found, expected);
        for (tensor, written) in read.tensors.iter().zip(&file.tensors) {
            let bytes = &file.bytes()[tensor.offset as usize..][..tensor.len as usize];
            assert_eq!(bytes, written.bytes, "{}", tensor.name);
        }
    }
}

#[test]
fn unwanted_texts_and_lists_are_not_kept() {
    let bytes = good().bytes();
    let read = Gguf::read(&bytes[..], bytes.len() as u64, |_| false).unwrap();
    assert_eq!(read.keys["general.architecture"], Value::Null);
    assert_eq!(read.keys["toy.block_count"], Value::Int(2));
    for key in ["toy.windows", "toy.words"] {
        assert_eq!(read.keys[key].to_string(), r#"{"length":3}"#);
    }
    assert_eq!(read.tensors, parse(&bytes).unwrap().tensors);
}

#[test]
fn lists_are_decoded_where_they_lie() {
    let header = good().header();
    let lists = Gguf::lists(&header, |key| key != "toy.flag").unwrap();
    assert_eq!(lists.keys().collect::<Vec<_>>(), ["toy.windows", "toy.words"]);
    let windows = &lists["toy.windows"];
    let numbers: Vec<_> = windows.numbers().unwrap().map(Result::unwrap).collect();
    assert_eq!(numbers, [1, -2, 3].map(Value::Int));
    assert!(windows.texts().is_none());
    let words = &lists["toy.words"];
    let texts: Vec<_> = words.texts().unwrap().map(Result::unwrap).collect();
    assert_eq!((texts, words.count()), (vec!["a", "", "é"], 3));
    assert!(words.numbers().is_none());
    assert!(Gguf::lists(&header, |key| key == "toy.words").unwrap().len() == 1);
    let odd = key(9, &list(8, 1, &[1, 0, 0, 0, 0, 0, 0, 0, 0xff]));
    let odd = Gguf::lists(&odd, |key| key == "x").unwrap();
    assert!(matches!(odd["x"].texts().unwrap().next(), Some(Err(GgufError::Text))));
    assert!(Gguf::lists(&header[..60], |_| true).is_err());
}

#[test]
fn hostile_headers() {
    const MOST: u64 = 1 << 22;
    let claims = |tensors: u64, keys: u64| {
        let counts = [tensors.to_le_bytes(), keys.to_le_bytes()].concat();
        [b"GGUF", &3u32.to_le_bytes()[..], &counts, &[0; 100]].concat()
    };
    let version = |version| GgufFile { version, ..good() }.bytes();
    let deep = (0..5).fold(list(4, 0, &[]), |inner, _| list(9, 1, &inner));
    let align = |value| with(|file| file.key("general.alignment", value));
    let long = "x".repeat(513);
    #[rustfmt::skip]
    let cases: Vec<(&str, Vec<u8>, &str)> = vec![
        ("nothing", vec![], "does not begin with `GGUF`"),
        ("three bytes", b"GGU".to_vec(), "does not begin with `GGUF`"),
        ("another format", b"PK\x03\x04 and more".to_vec(), "does not begin with `GGUF`"),
        ("version 1", version(1), "version 1"),
        ("version 4", version(4), "version 4"),
        ("big-endian", version(3u32.swap_bytes()), "big-endian"),
        ("more tensors than bytes", claims(u64::MAX, 0), "lists 18446744073709551615 tensors"),
        ("more tensors than fit", claims(5, 0), "its header lists 5 tensors, more than the 4"),
        ("more keys than bytes", claims(0, u64::MAX), "lists 18446744073709551615 keys"),
        ("more keys than fit", claims(0, 8), "its header lists 8 keys, more than the 7"),
        ("a name of 2^64 - 1 bytes", with(|f| f.version = 3).into_iter().take(24).chain([255; 8]).chain([0; 99]).collect(), "ends within the name of a key"),
        ("an empty key", with(|f| f.key("", Key::U32(1))), "name of a key is empty"),
        ("a long key", with(|f| f.key(&long, Key::U32(1))), "name of a key is empty, too long"),
        ("a key with an escape", with(|f| f.key("\u{1b}[2J", Key::U32(1))), "not printable"),
        ("one key twice", with(|f| f.key("toy.eps", Key::F32(1.0))), "key `toy.eps` twice"),
        ("a type that does not exist", key(13, &[0; 8]), "key `x`, the type 13 does not exist"),
        ("a truth value of 2", key(7, &[2]), "key `x`, a truth value is 2"),
        ("a text that is not UTF-8", key(8, &[1, 0, 0, 0, 0, 0, 0, 0, 0xff]), "key `x`, a text is not UTF-8"),
        ("a text of 2^64 - 1 bytes", key(8, &[255; 8]), "ends within a text"),
        ("a list of a type that does not exist", key(9, &list(99, 1, &[0; 8])), "key `x`, the type 99"),
        ("a list of 2^64 - 1 numbers", key(9, &list(4, u64::MAX, &[])), "18446744073709551615 elements of a list"),
        ("a list of 2^61 texts", key(9, &list(8, 1 << 61, &[])), "2305843009213693952 elements of a list"),
        ("a long list of bytes", key(9, &list(0, 65_537, &[0; 65_537])), "65537 short numbers"),
        ("more numbers than any vocabulary", key(9, &list(4, MOST + 1, &[0; 4].repeat(MOST as usize + 1))), "4194305 values, more than 4194298"),
        ("deep lists", key(9, &deep), "key `x`, lists are nested too deeply"),
        ("an alignment of 0", align(Key::U32(0)), "aligns tensors to 0"),
        ("an alignment of 48", align(Key::U32(48)), "aligns tensors to 48"),
        ("an alignment of 2^31", align(Key::U32(1 << 31)), "aligns tensors to 2147483648"),
        ("an alignment of -32", align(Key::Raw(5, (-32i32).to_le_bytes().to_vec())), "aligns tensors to -32"),
        ("an alignment in words", align("32".into()), "aligns tensors to \"32\""),
        ("five dimensions", tensor("x", 0, &[1; 5], None), "`x` has more than four dimensions"),
        ("a shape that overflows", tensor("x", 0, &[1 << 32, 1 << 32], None), "`x` has a shape that cannot be stored"),
        ("bytes that overflow", tensor("x", 0, &[1 << 62], None), "`x` has a shape that cannot be stored"),
        ("an absurd shape of nothing", tensor("x", 0, &[0, 1 << 63, 2], None), "`x` has a shape that cannot be stored"),
        ("half a block", tensor("x", 8, &[2, 48], None), "`x` has a shape that cannot be stored"),
        ("half a block of 256", tensor("x", 12, &[2, 384], None), "`x` has a shape that cannot be stored"),
        ("a scalar of blocks", tensor("x", 8, &[], None), "`x` has a shape that cannot be stored"),
        ("a type that is not read", tensor("x", 41, &[256], None), "`x` in Q1_0, which is not supported; take a file"),
        ("a type without a name", tensor("x", 4, &[4], None), "`x` in a format without a name, number 4; take a file"),
        ("an odd offset", tensor("x", 0, &[4], Some(200)), "`x` does not start at a multiple"),
        ("a far offset", tensor("x", 0, &[4], Some(1 << 40)), "`x` reaches beyond the end"),
        ("an offset that overflows", tensor("x", 0, &[4], Some(!31)), "`x` reaches beyond the end"),
        ("a tensor longer than its data", tensor("x", 0, &[5], None), "`x` reaches beyond the end"),
        ("the place of another", tensor("x", 0, &[4], Some(0)), "overlaps another one"),
        ("the end of another", tensor("x", 0, &[4], Some(32)), "overlaps another one"),
        ("one name twice", tensor("stack", 0, &[4], None), "tensor `stack` twice"),
        ("an empty name", tensor("", 0, &[4], None), "name of a tensor is empty"),
        ("a long name", tensor(&long, 0, &[4], None), "name of a tensor is empty, too long"),
        ("a name with an escape", tensor("\u{1b}", 0, &[4], None), "not printable"),
    ];
    for (what, bytes, expected) in cases {
        let (result, allocated) = peak(|| parse(&bytes));
        let Err(error) = result else { panic!("{what}: accepted") };
        let message = error.to_string();
        assert!(message.contains(expected), "{what}: no `{expected}` in: {message}");
        assert!(
            message.contains("; take ") || message.ends_with("; download it again"),
            "{message}"
        );
        assert!(!message.contains('\n'), "{what}: {message}");
        assert!(allocated <= bound(bytes.len()), "{what}: {allocated} for {}", bytes.len());
    }
}

/// A file that ends anywhere, or claims any length, is refused.
#[test]
fn files_that_end_early() {
    let file = good();
    let (bytes, header) = (file.bytes(), file.header().len());
    for end in 0..bytes.len() {
        let message = parse(&bytes[..end]).unwrap_err().to_string();
        let expected = match end {
            0..4 => "does not begin with `GGUF`",
            _ if end < header => "is damaged",
            _ => "reaches beyond the end of the file",
        };
        assert!(message.contains(expected), "{end}: {message}");
        // The length that the system gave can be wrong too.
        let claimed = Gguf::read(&bytes[..end], bytes.len() as u64, |_| true);
        assert_eq!(claimed.is_ok(), end >= header, "{end}");
    }
}

#[test]
fn memory_is_bounded_by_the_length_of_the_file() {
    let texts = |count| Key::Texts(vec![String::new(); count]);
    let mut nested = list(9, 30_000, &[]);
    nested.extend(list(4, 0, &[]).repeat(30_000));
    let keys: Vec<(String, Key)> =
        (0..4096).map(|i| (i.to_string(), Key::Raw(0, vec![0]))).collect();
    let mut cases = vec![
        with(|file| file.keys = keys),
        with(|file| file.key("x", texts(100_000))),
        key(9, &list(0, 65_536, &[0; 65_536])),
        key(9, &nested),
        key(8, &text(&"x".repeat(1 << 20))),
    ];
    cases.push(with(|file| {
        for i in 0..20_000 {
            file.tensor(&i.to_string(), 0, &[0], Vec::new());
        }
    }));
    for bytes in cases {
        let (result, allocated) = peak(|| parse(&bytes));
        assert!(result.is_ok(), "{:?}", result.err());
        assert!(allocated <= bound(bytes.len()), "{allocated} for {}", bytes.len());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    /// Damaged copies of a good file give an error of one sentence, or tensors that lie in it.
    #[test]
    fn damaged_headers(
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        wanted in any::<bool>(),
    ) {
        let mut bytes = good().bytes();
        for (at, byte) in edits {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        let len = bytes.len() as u64;
        let (result, allocated) = peak(|| Gguf::read(&bytes[..], len, |_| wanted));
        prop_assert!(allocated <= bound(bytes.len()), "{} for {}", allocated, len);
        match result {
            Ok(read) => {
                let mut end = read.len;
                for tensor in &read.tensors {
                    prop_assert!(tensor.offset >= end && tensor.offset + tensor.len <= len);
                    end = tensor.offset + tensor.len;
                }
            }
            Err(error) => prop_assert!(!error.to_string().contains('\n')),
        }
    }
}
