"""One engine a file. Each file has a class Engine:

Engine(onnx: Path, threads: int)   imports the library; a PyTorch engine also loads the PyTorch model
create()                           timed: makes the engine's own form of the model, as far as that happens before a call
prepare(case) -> inputs            turns numpy arrays into the engine's own tensors; not timed
run(inputs) -> output              one call, timed; returns when the answer is there
output(answer) -> numpy array      the last hidden state, float32 [batch, sequence, width]; not timed
"""
