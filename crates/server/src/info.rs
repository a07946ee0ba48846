//! `pumice info`: what a drive holds, read from the drive itself, or how a running server is doing, asked over its
//! control socket or its Redis face.

use std::path::Path;

use pumice_base::size::format_size;
use pumice_flash::DeviceSpec;
use pumice_kv::{Opened, Store, StoreOptions};
use pumice_node::StoredMember;
use pumice_reactor::Addr;
use serde_json::{Value, json};

use crate::cli::InfoArgs;
use crate::exit::{Outcome, Stop};
use crate::format::hex;
use crate::progress::Progress;
use crate::{config, control, drives, raw, space, wire};

/// Runs the command.
pub fn run(args: InfoArgs) -> Outcome {
    if let Some(data) = args.data.as_ref().filter(|_| args.health) {
        let (status, body) = control::ask(&control::socket_path(data), "/health")?;
        print!("{body}");
        return health_outcome(status == 200);
    }
    if let Some(data) = &args.data {
        let body = control::get(&control::socket_path(data), "/info")?;
        let value: Value = serde_json::from_str(&body).map_err(|e| Stop::doing("the server's answer", e))?;
        print(&value, args.json);
        return match value["state"].as_str() {
            Some("ready") => Ok(()),
            state => Err(Stop::No(format!("the server is {}", state.unwrap_or("in an unknown state")))),
        };
    }
    let target = args.server.as_deref().or(args.target.as_deref()).unwrap_or_default();
    if args.server.is_some() || is_address(target) {
        let addr: Addr = target.parse().map_err(|e| Stop::doing(format!("address {target}"), e))?;
        return server(&addr, &args);
    }
    if !target.starts_with("emu:") && target.contains(':') && !Path::new(target).exists() {
        let wrong = target.parse::<Addr>().err().unwrap_or_default();
        return Err(Stop::because(format!("there is no drive {target}, and as an address {wrong}")));
    }
    let value = drive(target)?;
    print(&value, args.json);
    Ok(())
}

/// A path that is there is a drive, whatever it is called.
fn is_address(target: &str) -> bool {
    !target.starts_with("emu:")
        && (target.starts_with("unix:") || (!Path::new(target).exists() && target.parse::<Addr>().is_ok()))
}

fn server(addr: &Addr, args: &InfoArgs) -> Outcome {
    const TLS_ADVICE: &str = "ask the server through its control socket, `pumice info --data DIR`";
    let password = config::password(args.password.clone());
    let info = wire::info(addr, password.as_deref(), TLS_ADVICE)?;
    if args.health {
        return health(&info);
    }
    if args.json {
        let object: serde_json::Map<String, Value> =
            info.into_iter().filter(|(k, _)| !k.starts_with('#')).map(|(k, v)| (k, v.into())).collect();
        println!("{}", Value::Object(object));
    } else {
        for (key, value) in info {
            if key.starts_with('#') {
                println!("\n{key}");
            } else {
                println!("{key:<36} {value}");
            }
        }
    }
    Ok(())
}

/// What INFO tells of a server's health, as /health would say it.
fn health(info: &[(String, String)]) -> Outcome {
    let of = |name: &str| info.iter().find(|(key, _)| key == name).map_or("", |(_, value)| value.as_str());
    let (is_loading, why) = (of("loading") == "1", of("trouble"));
    let state = match (is_loading, why) {
        (true, _) => "loading",
        (false, "") => "ready",
        _ => "degraded",
    };
    let mut body = json!({ "state": state });
    if state == "degraded" {
        body["why"] = why.into();
    }
    println!("{body}");
    health_outcome(!is_loading)
}

fn health_outcome(takes_commands: bool) -> Outcome {
    if takes_commands { Ok(()) } else { Err(Stop::No("the server takes no commands".into())) }
}

fn drive(target: &str) -> Result<Value, Stop> {
    let spec = drives::parse(target)?;
    if matches!(&spec, DeviceSpec::Emulated(spec) if spec.path.is_none()) {
        return Err(Stop::because("an emulated drive in memory holds nothing before it is served"));
    }
    let bar = Progress::new("opening", true);
    let value = drives::on_a_core(async {
        let device = drives::open_unserved(&spec).await?;
        if let Some(opened) = raw::open(&device, &|done, total| bar.set(done, total)).await? {
            return Ok(raw::info(target, &opened, space::geometry));
        }
        let opened = Store::open(device, StoreOptions::default(), &|done, total| bar.set(done, total)).await;
        let Opened { store, clean, replayed, damage, .. } = opened.map_err(|e| {
            drives::explain_unreadable(std::iter::once(&spec), &format!("drive {target}: {e}"))
        })?;
        let member = StoredMember::read(&store, target).await.map_err(Stop::because)?.member;
        let stats = store.stats();
        let mut value = json!({
            "device": target,
            "drive_id": hex(&store.heap().drive_id()),
            "segment_bytes": store.heap().segment_bytes(),
            "slices": store.slice_count(),
            "set": member.map(|m| json!({ "id": hex(&m.set), "index": m.index, "count": m.count })),
            "closed_cleanly": clean,
            "replayed_records": replayed,
            "last_seq": store.last_seq(),
            "key_tables": stats.tables,
            "key_table_bytes": stats.table_bytes,
            "table_entries": stats.table_entries,
            "damage": damage.iter().map(ToString::to_string).collect::<Vec<_>>(),
        });
        if let Value::Object(fields) = &mut value {
            space::describe(store.heap(), fields);
        }
        Ok(value)
    });
    bar.finish();
    value
}

/// Prints `value` as JSON, or as indented lines with byte counts in people's units.
fn print(value: &Value, as_json: bool) {
    if as_json {
        println!("{value}");
    } else {
        lines(value, 0, false);
    }
}

fn lines(value: &Value, indent: usize, in_bytes: bool) {
    let Value::Object(fields) = value else { return };
    for (name, field) in fields {
        let bytes = in_bytes || name == "space" || name.ends_with("_bytes");
        let pad = " ".repeat(indent);
        match field {
            Value::Object(_) => {
                println!("{pad}{name}");
                lines(field, indent + 2, bytes);
            }
            Value::Array(items) => {
                for item in items {
                    match item {
                        Value::Object(_) => {
                            println!("{pad}{name}");
                            lines(item, indent + 2, bytes);
                        }
                        other => println!("{pad}{name:<24} {}", plain(other, bytes)),
                    }
                }
            }
            // As metrics are named, in which seconds are the unit.
            other if name.contains("seconds") && other.is_number() => {
                println!("{pad}{name:<24} {}", duration(other.as_f64().unwrap_or(0.0)));
            }
            other => println!("{pad}{name:<24} {}", plain(other, bytes)),
        }
    }
}

/// Seconds in the unit in which they are more than a fraction.
fn duration(seconds: f64) -> String {
    match seconds {
        1.0.. => format!("{seconds:.3} s"),
        0.001.. => format!("{:.3} ms", seconds * 1e3),
        _ => format!("{:.1} us", seconds * 1e6),
    }
}

fn plain(value: &Value, bytes: bool) -> String {
    match (value, value.as_u64()) {
        (_, Some(n)) if bytes => format_size(n),
        (Value::String(text), _) => text.clone(),
        (Value::Null, _) => "-".into(),
        (Value::Number(n), _) if n.is_f64() => format!("{:.3}", n.as_f64().unwrap_or(0.0)),
        _ => value.to_string(),
    }
}
