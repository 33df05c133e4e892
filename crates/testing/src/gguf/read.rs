//! Files of other programs, to be changed and written again.

use std::path::Path;

use sws_format::{Dtype, Gguf, Value};

use super::{GgufFile, GgufTensor, Key};

impl GgufFile {
    /// Reads a file. Integers of keys become 32-bit ones where they fit.
    pub fn read(path: &Path) -> GgufFile {
        let bytes = std::fs::read(path).unwrap();
        let read = Gguf::read(bytes.as_slice(), bytes.len() as u64, |_| true).unwrap();
        let mut file = GgufFile { version: read.version, ..GgufFile::default() };
        for (name, value) in &read.keys {
            file.key(name, key(value));
        }
        for tensor in &read.tensors {
            let kind = match tensor.dtype {
                Dtype::F32 => 0,
                Dtype::BF16 => 30,
                Dtype::I32 => 26,
                Dtype::MXFP4 => 39,
                Dtype::NVFP4 => 40,
                other => panic!("{other:?}"),
            };
            let bytes = bytes[tensor.offset as usize..][..tensor.len as usize].to_vec();
            let name = tensor.name.clone();
            let shape = tensor.shape.clone();
            file.tensors.push(GgufTensor { name, kind, shape, offset: None, bytes });
        }
        file
    }
}

fn key(value: &Value) -> Key {
    match value {
        Value::Bool(flag) => Key::Bool(*flag),
        Value::String(text) => Key::Text(text.clone()),
        Value::Int(_) => match u32::try_from(value.as_u64().unwrap()) {
            Ok(number) => Key::U32(number),
            Err(_) => Key::Raw(10, value.as_u64().unwrap().to_le_bytes().to_vec()),
        },
        Value::Float(number) => Key::F32(*number as f32),
        Value::List(all) => match all.first() {
            Some(Value::Bool(_)) => Key::Bools(all.iter().map(|v| v.as_bool().unwrap()).collect()),
            Some(Value::String(_)) => {
                Key::Texts(all.iter().map(|v| v.as_str().unwrap().to_owned()).collect())
            }
            Some(Value::Float(_)) => {
                Key::Floats(all.iter().map(|v| v.as_f64().unwrap() as f32).collect())
            }
            _ => {
                let numbers = all.iter().flat_map(|v| v.as_u64().unwrap().to_le_bytes());
                let head = [&10u32.to_le_bytes()[..], &(all.len() as u64).to_le_bytes()].concat();
                Key::Raw(9, head.into_iter().chain(numbers).collect())
            }
        },
        other => panic!("{other}"),
    }
}
