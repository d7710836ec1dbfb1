import torch
from transformers import BertConfig, BertForSequenceClassification

SIZES = {"hidden_size": 128, "num_attention_heads": 4, "intermediate_size": 512}


def test_finetuning_step(gpuperf):
    torch.manual_seed(0)
    config = BertConfig(vocab_size=1000, num_hidden_layers=4, **SIZES)
    model = BertForSequenceClassification(config).to(gpuperf.torch_device).train()
    model.bert.embeddings.requires_grad_(False)  # what is tuned is above them
    tuned = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.SGD(tuned, lr=1e-3)
    words = torch.randint(0, 1000, (8, 64), device=model.device)
    labels = torch.randint(0, 2, (8,), device=model.device)
    start = {name: value.clone() for name, value in model.state_dict().items()}

    def step():
        optimizer.zero_grad()
        loss = model(input_ids=words, labels=labels).loss
        loss.backward()
        optimizer.step()
        return loss

    def reset():
        torch.manual_seed(0)  # of dropout
        model.load_state_dict(start)

    gpuperf.measure(step, reset=reset)
