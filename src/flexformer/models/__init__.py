"""Models for Hugging Face's tools: a configuration beside safetensors, `AutoModel`, `Trainer`.

Importing this room registers the models, after which `AutoConfig`, `AutoModel`, `AutoModelForCausalLM` and
`AutoModelForSequenceClassification` know what `save_pretrained` wrote.
"""

from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoModelForSequenceClassification

from .adaptive import AdaptiveVocabulary
from .blocks import Block, FeedForward
from .causal_lm import CausalLM
from .causal_lm_configuration import CausalLMConfig
from .classifier import Classifier
from .configuration import DualEncoderConfig, EncoderConfig
from .dual_encoder import DualEncoder
from .encoder import Encoder, EncoderOutput
from .vocabulary import TiedVocabulary, Vocabulary

AutoConfig.register(EncoderConfig.model_type, EncoderConfig, exist_ok=True)
AutoConfig.register(DualEncoderConfig.model_type, DualEncoderConfig, exist_ok=True)
AutoConfig.register(CausalLMConfig.model_type, CausalLMConfig, exist_ok=True)
AutoModel.register(EncoderConfig, Encoder, exist_ok=True)
AutoModelForCausalLM.register(CausalLMConfig, CausalLM, exist_ok=True)
AutoModelForSequenceClassification.register(EncoderConfig, Classifier, exist_ok=True)
AutoModelForSequenceClassification.register(DualEncoderConfig, DualEncoder, exist_ok=True)

__all__ = [
    "AdaptiveVocabulary",
    "Block",
    "CausalLM",
    "CausalLMConfig",
    "Classifier",
    "DualEncoder",
    "DualEncoderConfig",
    "Encoder",
    "EncoderConfig",
    "EncoderOutput",
    "FeedForward",
    "TiedVocabulary",
    "Vocabulary",
]
