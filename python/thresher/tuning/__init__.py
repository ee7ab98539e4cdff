"""Which blocking of matrix products is fastest on this machine: measured, kept, and used by the plans of this machine.

report = thresher.tune(model, inputs, precision="int8")  # or: thresher tune script.py
print(report)
"""

from thresher.tuning.measure import Progress, tune_products
from thresher.tuning.product import Choice, Product, TunedProduct
from thresher.tuning.report import TuningReport
from thresher.tuning.table import apply, forget

__all__ = ["Choice", "Product", "Progress", "TunedProduct", "TuningReport", "apply", "forget", "tune_products"]
