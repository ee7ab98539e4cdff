// Runs Perfetto's trace processor, compiled to WebAssembly, over one trace:
//   node trace_processor.mjs FOLDER TRACE SQL...
// FOLDER holds engine_bundle.js and the .wasm files. Prints one line of base64 per query: the reply of the processor.
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import vm from 'node:vm';

const [folder, trace, ...queries] = process.argv.slice(2);

// The bundle is made for a web worker.
globalThis.self = globalThis;
globalThis.WorkerGlobalScope = class {};
globalThis.importScripts = () => {};
globalThis.location = { href: 'file:///engine_bundle.js', pathname: '/engine_bundle.js' };
globalThis.console = new console.Console(process.stderr, process.stderr);
globalThis.XMLHttpRequest = class {
  open(_, name) { this.name = name; }
  send() { this.response = readFileSync(join(folder, this.name.split('/').pop())); }
};
const node = globalThis.process;
Object.defineProperty(globalThis, 'process', { value: undefined, configurable: true, writable: true });
vm.runInThisContext(readFileSync(join(folder, 'engine_bundle.js'), 'utf8'));

let replies = [];
const port = { postMessage: (bytes) => replies.push(Buffer.from(bytes)) };
globalThis.onmessage({ data: port });

function varint(value) {
  const bytes = [];
  for (; value >= 0x80; value = Math.floor(value / 128)) bytes.push((value % 128) | 0x80);
  return Buffer.from([...bytes, value]);
}
const number = (field, value) => Buffer.concat([varint(field * 8), varint(value)]);
const bytes = (field, content) => Buffer.concat([varint(field * 8 + 2), varint(content.length), content]);

// TraceProcessorRpcStream.msg = TraceProcessorRpc {seq, request, arguments}
let sequence = 0;
function call(request, ...fields) {
  const message = bytes(1, Buffer.concat([number(1, ++sequence), number(2, request), ...fields]));
  replies = [];
  port.onmessage({ data: new Uint8Array(message) });  // answers before it returns
  return Buffer.concat(replies);
}

async function main() {
  await new Promise((resolve) => setTimeout(resolve));  // the module calls back when it is ready
  call(1, bytes(101, readFileSync(trace)));
  call(2);
  for (const query of queries) {
    const found = call(3, bytes(103, bytes(1, Buffer.from(query))));
    node.stdout.write(found.toString('base64') + '\n');
  }
}

main().then(() => node.exit(0), (error) => {
  node.stderr.write(String(error.stack) + '\n');
  node.exit(1);
});
