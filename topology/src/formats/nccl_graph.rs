//! NCCL's graph XML: rings and trees already found.

use super::xml::{Document, Element, Writer};
use crate::Result;
use crate::path::PathClass;
use crate::search::{Channel, ChannelGraph, Found, Pattern};

const FORMAT: &str = "NCCL graph XML";

/// Reads a file: every graph with NCCL's id (0 ring, 1 tree, 2 CollNet chain, 3 NVLS, 4 CollNet direct).
pub fn read(text: &str) -> Result<Vec<(u32, ChannelGraph)>> {
    let document = Document { text, format: FORMAT };
    let root = document.parse()?;
    if root.name != "graphs" {
        return Err(super::detect::wrong_format("NCCL graph XML (<graphs>)", text));
    }
    root.all("graph").map(|g| graph(&document, g)).collect()
}

fn graph(document: &Document<'_>, e: &Element) -> Result<(u32, ChannelGraph)> {
    let number = |key: &str| -> Result<f64> {
        let text = e.get(key).unwrap_or("0");
        match text.parse::<f64>() {
            Ok(v) if v.is_finite() && v >= 0.0 => Ok(v),
            _ => Err(document.at(e, format!("<graph {key}=\"{text}\"> is not a number from 0"))),
        }
    };
    let class = |key: &str| -> Result<PathClass> {
        let word = e.get(key).unwrap_or("LOC");
        PathClass::from_word(word).ok_or_else(|| {
            document.at(
                e,
                format!(
                    "{key} `{word}` is no path class; there are LOC NVL NVB C2C PIX PXB P2C PXN PHB SYS NET"
                ),
            )
        })
    };
    let pattern = number("pattern")? as u32;
    let pattern = Pattern::from_number(pattern)
        .ok_or_else(|| document.at(e, format!("pattern {pattern} is not known; there are 1 to 6")))?;
    let channels: Vec<Channel> = e.all("channel").map(|c| channel(document, c)).collect::<Result<_>>()?;
    let stated = number("nchannels")? as usize;
    if stated != channels.len() {
        return Err(
            document.at(e, format!("nchannels says {stated}, and there are {} <channel>", channels.len()))
        );
    }
    let id = number("id")? as u32;
    Ok((
        id,
        ChannelGraph {
            pattern,
            speed_intra: number("speedintra")?,
            speed_inter: number("speedinter")?,
            type_intra: class("typeintra")?,
            type_inter: class("typeinter")?,
            cross_nic: number("crossnic")? as u32,
            same_channels: number("samechannels")? != 0.0,
            latency_inter: number("latencyinter")?,
            channels,
            hops: 0,
            steps: 0,
        },
    ))
}

fn channel(document: &Document<'_>, e: &Element) -> Result<Channel> {
    let (mut gpus, mut nets) = (Vec::new(), Vec::new());
    for end in &e.children {
        let text = end.get("dev").unwrap_or_default();
        let dev = match text.strip_prefix("0x") {
            Some(digits) => i32::from_str_radix(digits, 16).ok(),
            None => text.parse().ok(),
        };
        let dev = dev.ok_or_else(|| document.at(end, format!("dev `{text}` is no device number")))?;
        match end.name.as_str() {
            "gpu" => gpus.push(dev),
            "net" => nets.push(dev),
            other => return Err(document.at(end, format!("<{other}> in a channel; there are gpu and net"))),
        }
    }
    let nets = match nets[..] {
        [] => None,
        [a, b] => Some([a, b]),
        _ => return Err(document.at(e, format!("{} nets in a channel; it has two or none", nets.len()))),
    };
    Ok(Channel { gpus, nets })
}

/// Writes rings and trees in NCCL's form, for `NCCL_GRAPH_FILE`.
pub fn write(found: &Found) -> String {
    write_graphs(&[(0, &found.ring), (1, &found.tree)])
}

/// Writes any graphs with their ids.
pub fn write_graphs(graphs: &[(u32, &ChannelGraph)]) -> String {
    let mut w = Writer::default();
    w.element(
        "graphs",
        &[("version".into(), "1".into())],
        Some(&mut |w| graphs.iter().for_each(|(id, g)| write_graph(w, *id, g))),
    );
    w.finish()
}

fn write_graph(w: &mut Writer, id: u32, g: &ChannelGraph) {
    // NCCL does not know NODE.
    let word = |c: PathClass| if c == PathClass::Node { PathClass::Phb } else { c }.word().to_owned();
    let pairs: Vec<(String, String)> = [
        ("id", id.to_string()),
        ("pattern", g.pattern.number().to_string()),
        ("crossnic", g.cross_nic.to_string()),
        ("nchannels", g.channels.len().to_string()),
        ("speedintra", g.speed_intra.to_string()),
        ("speedinter", g.speed_inter.to_string()),
        ("latencyinter", g.latency_inter.to_string()),
        ("typeintra", word(g.type_intra)),
        ("typeinter", word(g.type_inter)),
        ("samechannels", u32::from(g.same_channels).to_string()),
    ]
    .into_iter()
    .map(|(k, v)| (k.to_owned(), v))
    .collect();
    if g.channels.is_empty() {
        w.element("graph", &pairs, None);
        return;
    }
    w.element(
        "graph",
        &pairs,
        Some(&mut |w| {
            for c in &g.channels {
                w.element(
                    "channel",
                    &[],
                    Some(&mut |w| {
                        let net = |w: &mut Writer, end: usize| {
                            if let Some(nets) = c.nets {
                                w.element("net", &[("dev".into(), device(nets[end]))], None);
                            }
                        };
                        net(w, 0);
                        c.gpus.iter().for_each(|&g| w.element("gpu", &[("dev".into(), device(g))], None));
                        net(w, 1);
                    }),
                );
            }
        }),
    );
}

/// As C's `%#x`: 0 has no prefix.
fn device(dev: i32) -> String {
    if dev == 0 { "0".to_owned() } else { format!("{dev:#x}") }
}
