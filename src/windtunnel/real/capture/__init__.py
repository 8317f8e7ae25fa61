"""A real PyTorch script, run as a few ranks of a virtual world: what each executes, without its cluster.

question.py         capture("train.py", world_size=64): what the verb does, for Python
launch.py           a launch -> a folder: which ranks are played, checked and kept
processes/          the processes that play them
virtual_world/      torch.distributed as one rank sees it, answered without peers
fake_tensors/       tensors without data, and the GPU that the script is told it has
recorder/           what is executed, written down as the program of one rank
torch_private/      all that rests on what PyTorch does not promise to keep
"""
